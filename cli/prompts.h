// Files of prompts: the one reader of `generate --prompts` and `eval --prompts`.
//
// A line is an object with "prompt", maybe "id", and keys of GenerateOptions for this line. In a
// .txt file it is the prompt as it stands. A .csv or .tsv file has the columns prompt and id, a
// .json file a list of such objects; each may be compressed (.gz, .zst).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fovea/checkpoint/changed_model.h"
#include "fovea/infer/generate.h"

namespace fovea::cli {

struct PromptLine {
  TextRequest request;
  nlohmann::ordered_json id;  ///< null where the line has none
};

/// All lines of a file, or of stdin for "-", each checked. InputError with file and line for one
/// that `loaded` cannot continue; ConfigError for keys and values that do not exist.
std::vector<PromptLine> read_prompts(const std::string& path, const GenerateOptions& defaults,
                                     const ContextOptions& context, const LoadedModel& loaded);

std::vector<TextRequest> requests_of(const std::vector<PromptLine>& lines);

}  // namespace fovea::cli
