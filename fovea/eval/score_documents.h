// Documents of text files, folders and JSONL, for scoring.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "fovea/eval/scoring.h"

namespace fovea {

/// One document per text file, one per line of a JSONL file; the source of each is named after its
/// path. InputError with file:line, and where there is no text at all.
std::vector<ScoreDocument> read_score_documents(std::span<const std::string> paths);

}  // namespace fovea
