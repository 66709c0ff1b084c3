// Stories of the bAbI tasks, cut into samples with one question each (spec 9.7).
//
// A file has lines "1 Mary moved to the bathroom." and "3 Where is Mary?<tab>bathroom<tab>1"; the
// number 1 begins a story.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace fovea {

struct BabiSample {
  std::vector<std::string> facts;  ///< of the story up to the question, without earlier questions
  std::string question, answer;
};

/// One sample a question. `name` stands for the text in errors. InputError with name:line for a
/// line without a number, a number that does not follow the one before, or a question without an
/// answer or before any fact. InputError also for a text without questions.
std::vector<BabiSample> parse_babi(std::string_view text, std::string_view name);

std::vector<BabiSample> read_babi(const std::filesystem::path& path);

/// The file of task 1 ... 5 and a split ("train" or "test") in a folder of bAbI files, or in its
/// subfolder "en" or "en-10k": "qa1_..._test.txt". InputError where there is none.
std::filesystem::path find_babi(const std::filesystem::path& folder, int task,
                                std::string_view split);

}  // namespace fovea
