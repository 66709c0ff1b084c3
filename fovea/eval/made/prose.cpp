// Sentences, books and folders of essays.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/made/prose.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/base/paths.h"
#include "fovea/text/utf8.h"

namespace fovea {
namespace {

bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

std::vector<std::string_view> split_words(std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t at = 0; at < text.size();) {
    while (at < text.size() && is_space(text[at])) ++at;
    const size_t begin = at;
    while (at < text.size() && !is_space(text[at])) ++at;
    if (at > begin) words.push_back(text.substr(begin, at - begin));
  }
  return words;
}

/// `word` without the quotes and brackets around it.
std::string_view bare(std::string_view word) {
  constexpr std::array<std::string_view, 10> kMarks = {
      "\"",           "'",           "(", ")", "[", "]", "\xE2\x80\x9C", "\xE2\x80\x9D",
      "\xE2\x80\x98", "\xE2\x80\x99"};
  for (bool found = true; found;) {
    found = false;
    for (const std::string_view mark : kMarks) {
      if (word.starts_with(mark)) word.remove_prefix(mark.size()), found = true;
      if (word.ends_with(mark)) word.remove_suffix(mark.size()), found = true;
    }
  }
  return word;
}

bool ends_sentence(std::string_view word, std::string_view next) {
  const std::string_view core = bare(word), following = bare(next);
  if (core.empty() || (core.back() != '.' && core.back() != '!' && core.back() != '?'))
    return false;
  if (!following.empty() && std::islower(static_cast<unsigned char>(following.front())) != 0)
    return false;
  if (core.back() != '.') return true;
  constexpr std::array<std::string_view, 12> kTitles = {
      "Mr.", "Mrs.", "Ms.", "Dr.", "St.", "Prof.", "Jr.", "Sr.", "e.g.", "i.e.", "vs.", "No."};
  const bool initial =
      core.size() == 2 && std::isupper(static_cast<unsigned char>(core.front())) != 0;
  return (!initial || core == "I.") && std::ranges::find(kTitles, core) == kTitles.end();
}

/// What stands between the marks of Project Gutenberg; the whole text without them.
std::string_view without_gutenberg_frame(std::string_view text) {
  const auto mark = [&](std::string_view word, size_t from) {
    size_t at = text.find("***", from);
    while (at != std::string_view::npos) {
      const std::string_view rest = text.substr(at + 3, std::min<size_t>(16, text.size() - at - 3));
      if (bare(rest).starts_with(word) || rest.starts_with(" " + std::string(word))) return at;
      at = text.find("***", at + 3);
    }
    return std::string_view::npos;
  };
  const size_t end = mark("END OF TH", 0);
  if (end != std::string_view::npos) text = text.substr(0, end);
  const size_t start = mark("START OF TH", 0);
  if (start == std::string_view::npos) return text;
  const size_t line = text.find('\n', start);
  return line == std::string_view::npos ? text.substr(text.size()) : text.substr(line + 1);
}

std::vector<std::filesystem::path> text_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const std::filesystem::path& path : folder_entries(folder)) {
    if (path.extension() == ".txt" && is_file(path)) files.push_back(path);
  }
  return files;
}

}  // namespace

std::vector<std::string> split_sentences(std::string_view text) {
  const std::vector<std::string_view> words = split_words(text);
  std::vector<std::string> sentences;
  std::string sentence;
  for (size_t i = 0; i < words.size(); ++i) {
    if (!sentence.empty()) sentence += ' ';
    sentence += words[i];
    if (i + 1 < words.size() && !ends_sentence(words[i], words[i + 1])) continue;
    sentences.push_back(std::move(sentence));
    sentence.clear();
  }
  return sentences;
}

Prose make_prose(std::string name, std::string_view text) {
  Prose prose{.name = std::move(name), .sentences = split_sentences(text), .words_before = {0}};
  require<InputError>(!prose.sentences.empty(), "prose",
                      "the text to hide things in must have words; '{}' has none", prose.name);
  for (const std::string& sentence : prose.sentences)
    prose.words_before.push_back(prose.words() + 1 + std::ranges::count(sentence, ' '));
  return prose;
}

Prose read_prose(const std::filesystem::path& path) {
  if (!is_folder(path))
    return make_prose(path.filename().string(),
                      without_gutenberg_frame(repair_utf8(read_file(path))));
  const std::vector<std::filesystem::path> files = text_files(path);
  require<InputError>(!files.empty(), "prose",
                      "expected *.txt files in the folder '{}'; it has none", path.string());
  std::string text;
  for (const std::filesystem::path& file : files) {
    const std::string content = repair_utf8(read_file(file));
    text += without_gutenberg_frame(content);
    text += '\n';
  }
  return make_prose(path.filename().string(), text);
}

std::vector<std::string> take_words(const Prose& prose, int64_t from, int64_t words) {
  std::vector<std::string> taken;
  const int64_t count = std::ssize(prose.sentences);
  for (int64_t i = from % count; words > 0; i = (i + 1) % count) {
    const std::string& sentence = prose.sentences[static_cast<size_t>(i)];
    const int64_t here =
        prose.words_before[static_cast<size_t>(i + 1)] - prose.words_before[static_cast<size_t>(i)];
    if (here <= words) {
      taken.push_back(sentence);
    } else {
      size_t end = 0;
      for (int64_t k = 0; k < words; ++k) end = sentence.find(' ', end + (k > 0 ? 1 : 0));
      taken.push_back(sentence.substr(0, end));
    }
    words -= here;
  }
  return taken;
}

}  // namespace fovea
