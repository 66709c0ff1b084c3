// The split of documents into train and validation (rules: corpus.h).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "fovea/data/corpus.h"

namespace fovea {

/// Fills train, validation and their token counts of every source from its store. Sources are split
/// together, so a document that occurs in several is on the same side in all. InputError where a
/// source is too small to have both sides.
void split_sources(std::vector<CorpusSource>& sources, const Tokenizer& tokenizer, double fraction,
                   uint64_t seed);

}  // namespace fovea
