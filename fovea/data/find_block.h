// Find the block: the task of the Multi-Token paper (spec 3.8, M-12). A line has blocks of N
// distinct letters, two letters of one of them, and that block (or one letter of it) as the answer.
//
//   gtqpn.zbvsl.akzqe....#qzakzqe        N = 5: which block has q and z?
//
// Each letter of the query is common, both together are in one block only.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace fovea {

struct FindBlock {
  /// The answer behind the query: the whole block, or its first or last letter.
  enum class Answer { all, first, last };

  int64_t letters = 5;  ///< N, 2 to 13
  Answer answer = Answer::all;
  int64_t line_length = 319;  ///< characters with answer `all`; blocks are whole (M-12)
  int64_t lines = 20000;
  uint64_t seed = 0;

  /// Whole blocks of a line: 52 for N = 5, 34 for N = 8.
  int64_t blocks() const { return (line_length - letters - 3 + 1) / (letters + 1); }
  /// Characters of the answer.
  int64_t answer_length() const { return answer == Answer::all ? letters : 1; }
};
std::span<const std::string_view> enum_names(FindBlock::Answer);

/// Line `number`: a function of the settings and the number alone.
std::string find_block_line(const FindBlock& settings, int64_t number);

/// "find-the-block:letters=5,answer=all,lines=20000,length=319,seed=0"; absent keys have their
/// default. ConfigError naming what is wrong.
FindBlock parse_find_block(std::string_view text);

/// The lines, one document each, as a JSONL file in `folder`; made once. Its path.
std::filesystem::path find_block_file(const FindBlock& settings,
                                      const std::filesystem::path& folder);

}  // namespace fovea
