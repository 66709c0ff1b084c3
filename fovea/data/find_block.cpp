// Lines of the block task.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/data/find_block.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <set>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/base/paths.h"
#include "fovea/base/rng.h"

namespace fovea {
namespace {

constexpr int64_t kAlphabet = 26;
constexpr std::string_view kPrefix = "find-the-block";

int64_t below(Rng& rng, int64_t n) {
  return std::min(n - 1, static_cast<int64_t>(rng.uniform() * static_cast<double>(n)));
}

// The first `count` of a shuffled alphabet.
std::string distinct_letters(Rng& rng, int64_t count) {
  std::string letters(kAlphabet, 'a');
  std::iota(letters.begin(), letters.end(), 'a');
  for (int64_t i = 0; i < count; ++i)
    std::swap(letters[static_cast<size_t>(i)],
              letters[static_cast<size_t>(i + below(rng, kAlphabet - i))]);
  return letters.substr(0, static_cast<size_t>(count));
}

bool has_both(const std::string& block, char a, char b) {
  return block.find(a) != std::string::npos && block.find(b) != std::string::npos;
}

int64_t read_integer(std::string_view key, std::string_view value) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  require<ConfigError>(error == std::errc() && end == value.data() + value.size(), "data",
                       "'{}' of {} must be a whole number; got '{}'", key, kPrefix, value);
  return number;
}

void check(const FindBlock& s) {
  require<ConfigError>(s.letters >= 2 && 2 * s.letters <= kAlphabet, "data",
                       "'letters' of {} must be 2 to 13; got {}", kPrefix, s.letters);
  require<ConfigError>(s.blocks() >= 2, "data",
                       "'length' of {} must hold two blocks of {} letters; got {}", kPrefix,
                       s.letters, s.line_length);
  require<ConfigError>(s.lines >= 1, "data", "'lines' of {} must be at least 1; got {}", kPrefix,
                       s.lines);
}

}  // namespace

std::span<const std::string_view> enum_names(FindBlock::Answer) {
  static constexpr std::string_view names[] = {"all", "first", "last"};
  return names;
}

std::string find_block_line(const FindBlock& settings, int64_t number) {
  check(settings);
  Rng rng(mix_seed(settings.seed, static_cast<uint64_t>(number)));
  const std::string target = distinct_letters(rng, settings.letters);
  const auto first = static_cast<size_t>(below(rng, settings.letters));
  auto second = static_cast<size_t>(below(rng, settings.letters - 1));
  second += second >= first ? 1 : 0;
  const char a = target[first], b = target[second];
  std::vector<std::string> blocks{target};
  std::set<std::string> seen{target};
  while (std::ssize(blocks) < settings.blocks()) {
    std::string block = distinct_letters(rng, settings.letters);
    if (has_both(block, a, b) || !seen.insert(block).second) continue;
    blocks.push_back(std::move(block));
  }
  for (size_t i = blocks.size() - 1; i > 0; --i)
    std::swap(blocks[i], blocks[static_cast<size_t>(below(rng, static_cast<int64_t>(i) + 1))]);
  std::string line;
  for (const std::string& block : blocks) line += (line.empty() ? "" : ".") + block;
  line += {'#', a, b};
  switch (settings.answer) {
    case FindBlock::Answer::all:
      return line + target;
    case FindBlock::Answer::first:
      return line + target.front();
    case FindBlock::Answer::last:
      break;
  }
  return line + target.back();
}

FindBlock parse_find_block(std::string_view text) {
  FindBlock s;
  std::string_view rest = text.substr(std::min(text.size(), kPrefix.size()));
  if (!rest.empty() && rest.front() == ':') rest.remove_prefix(1);
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    const size_t equals = part.find('=');
    const std::string_view key = part.substr(0, equals),
                           value = equals == std::string_view::npos ? "" : part.substr(equals + 1);
    if (key == "answer") {
      const auto names = enum_names(FindBlock::Answer{});
      const auto found = std::ranges::find(names, value);
      require<ConfigError>(found != names.end(), "data",
                           "'answer' of {} must be all, first or last; got '{}'", kPrefix, value);
      s.answer = static_cast<FindBlock::Answer>(found - names.begin());
    } else if (key == "letters") {
      s.letters = read_integer(key, value);
    } else if (key == "length") {
      s.line_length = read_integer(key, value);
    } else if (key == "lines") {
      s.lines = read_integer(key, value);
    } else if (key == "seed") {
      s.seed = static_cast<uint64_t>(read_integer(key, value));
    } else {
      fail<ConfigError>("data", "{} has no '{}'; known are letters, answer, length, lines, seed",
                        kPrefix, key);
    }
  }
  check(s);
  return s;
}

std::filesystem::path find_block_file(const FindBlock& s, const std::filesystem::path& folder) {
  const std::filesystem::path path =
      folder / fmt::format("{}-{}-{}-{}-{}-{}.jsonl", kPrefix, s.letters,
                           enum_names(s.answer)[static_cast<size_t>(s.answer)], s.line_length,
                           s.lines, s.seed);
  if (path_exists(path)) return path;
  std::string text;
  for (int64_t n = 0; n < s.lines; ++n) text += "{\"text\": \"" + find_block_line(s, n) + "\"}\n";
  make_folders(folder);
  write_file(path, text);
  return path;
}

}  // namespace fovea
