// Running prose that needles and facts are hidden in: essays, a book, or sentences of our own.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace fovea {

struct Prose {
  std::string name;                    ///< "built in", or the file or folder it was read from
  std::vector<std::string> sentences;  ///< words apart by one space each
  std::vector<int64_t> words_before;   ///< of each sentence, and of the end: one more entry

  int64_t words() const { return words_before.empty() ? 0 : words_before.back(); }
};

/// The sentences of a text whose white space has no meaning. A sentence ends at . ! or ?, with the
/// quotes and brackets behind it, before a word that begins with no lower-case letter. It never
/// ends behind a title ("Mr.") or an initial.
std::vector<std::string> split_sentences(std::string_view text);

/// InputError where the text has no words.
Prose make_prose(std::string name, std::string_view text);

/// A text file, or all *.txt of a folder in the order of their names. The frame of a Project
/// Gutenberg book (up to "*** START OF", from "*** END OF") is left out. InputError where nothing
/// can be read.
Prose read_prose(const std::filesystem::path& path);

/// Sentences that come with Fovea, about a village and its year: no data is needed.
const Prose& built_in_prose();

/// The `words` words from sentence `from` on, as sentences; behind the last sentence comes the
/// first. The last one taken may be cut between words.
std::vector<std::string> take_words(const Prose& prose, int64_t from, int64_t words);

}  // namespace fovea
