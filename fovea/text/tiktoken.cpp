// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/tiktoken.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/text/base64.h"
#include "fovea/text/tokenizer_json.h"
#include "fovea/text/word_splitter.h"

namespace fovea {
namespace {

constexpr std::string_view kCl100kPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
// The same with every digit alone.
constexpr std::string_view kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Words of capitals and small letters apart, with their contractions.
constexpr std::string_view kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Encoding {
  std::string_view name;
  size_t ranks;  // of its published file
  std::string_view pattern;
  std::vector<SpecialToken> specials;
  bool begins = false;  // the first special token stands before every text
  bool normal_form = false;
};

/// `count` special tokens, `name` with the numbers from `first`, at the ids from `id`.
void add_numbered(std::vector<SpecialToken>& specials, int32_t id, std::string_view name, int first,
                  int count) {
  for (int i = 0; i < count; ++i)
    specials.push_back({id + i, fmt::format("<|{}_{}|>", name, first + i)});
}

std::vector<SpecialToken> llama3_specials() {
  std::vector<SpecialToken> specials{{128000, "<|begin_of_text|>"}, {128001, "<|end_of_text|>"}};
  add_numbered(specials, 128002, "reserved_special_token", 0, 4);
  specials.push_back({128006, "<|start_header_id|>"});
  specials.push_back({128007, "<|end_header_id|>"});
  add_numbered(specials, 128008, "reserved_special_token", 4, 1);
  specials.push_back({128009, "<|eot_id|>"});
  add_numbered(specials, 128010, "reserved_special_token", 5, 246);
  return specials;
}

std::vector<SpecialToken> qwen_specials() {
  std::vector<SpecialToken> specials{
      {151643, "<|endoftext|>"}, {151644, "<|im_start|>"}, {151645, "<|im_end|>"}};
  add_numbered(specials, 151646, "extra", 0, 205);
  return specials;
}

const std::vector<Encoding>& encodings() {
  static const std::vector<Encoding> all{
      {"gpt2", 50256, kGpt2Pattern, {{50256, "<|endoftext|>"}}},
      {"p50k", 50280, kGpt2Pattern, {{50256, "<|endoftext|>"}}},
      {"cl100k",
       100256,
       kCl100kPattern,
       {{100257, "<|endoftext|>"},
        {100258, "<|fim_prefix|>"},
        {100259, "<|fim_middle|>"},
        {100260, "<|fim_suffix|>"},
        {100276, "<|endofprompt|>"}}},
      {"o200k", 199998, kO200kPattern, {{199999, "<|endoftext|>"}, {200018, "<|endofprompt|>"}}},
      {"llama3", 128000, kCl100kPattern, llama3_specials(), true},
      {"qwen", 151643, kQwenPattern, qwen_specials(), false, true},
  };
  return all;
}

const Encoding& find_encoding(std::string_view name, size_t ranks, const std::string& where) {
  for (const Encoding& encoding : encodings())
    if (name.empty() ? encoding.ranks == ranks : encoding.name == name) return encoding;
  std::string names;
  for (const Encoding& encoding : encodings())
    names += fmt::format("{}{}", names.empty() ? "" : ", ", encoding.name);
  if (name.empty()) {
    fail<InputError>(where,
                     "a tiktoken file of {} ranks does not say how text is split into words; name "
                     "its encoding behind a colon (FILE:cl100k): {}",
                     ranks, names);
  }
  fail<InputError>(where, "the encoding '{}' is not known; expected one of {}", name, names);
}

struct Line {
  std::string token;
  int32_t rank = -1;
};

std::optional<Line> parse_line(std::string_view text) {
  constexpr int32_t kMostIds = 1 << 22;
  if (text.ends_with('\r')) text.remove_suffix(1);
  const size_t space = text.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  const auto token = decode_base64(text.substr(0, space));
  Line line;
  const std::string_view number = text.substr(space + 1);
  const auto [end, error] =
      std::from_chars(number.data(), number.data() + number.size(), line.rank);
  const bool whole = error == std::errc() && end == number.data() + number.size();
  if (!token || token->empty() || !whole || line.rank < 0 || line.rank >= kMostIds)
    return std::nullopt;
  line.token = *token;
  return line;
}

using Ranks = std::unordered_map<std::string_view, int32_t>;

/// The tokens by rank; "" where a rank has none.
std::vector<std::string> read_tokens(std::string_view text, const std::string& where) {
  std::vector<std::string> tokens;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const auto line = parse_line(text.substr(0, end));
    require<InputError>(line.has_value(), where,
                        "line {} of a tiktoken file must be a token in base64, a space and its "
                        "rank; the file is damaged or cut off",
                        number);
    const auto rank = static_cast<size_t>(line->rank);
    if (tokens.size() <= rank) tokens.resize(rank + 1);
    require<InputError>(tokens[rank].empty(), where, "line {} has rank {} for the second time",
                        number, rank);
    tokens[rank] = line->token;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return tokens;
}

/// The parts into which merges below its rank join the bytes of a token: two, in a file from
/// training.
std::vector<std::string_view> parts_of(std::string_view token, int32_t rank, const Ranks& ranks) {
  std::vector<std::string_view> parts;
  for (size_t i = 0; i < token.size(); ++i) parts.push_back(token.substr(i, 1));
  for (;;) {
    int32_t best = rank;
    size_t place = parts.size();
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = ranks.find({parts[i].data(), parts[i].size() + parts[i + 1].size()});
      if (found != ranks.end() && found->second < best) best = found->second, place = i;
    }
    if (place == parts.size()) return parts;
    parts[place] = {parts[place].data(), parts[place].size() + parts[place + 1].size()};
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

void add_merges(const std::string& token, int32_t rank, const Ranks& ranks, ByteLevelFile& file) {
  const auto parts = parts_of(token, rank, ranks);
  if (parts.size() == 2) {
    file.merges.emplace_back(parts[0], parts[1]);
    return;
  }
  // A list in another order: every way to cut the token in two.
  for (size_t cut = 1; cut < token.size(); ++cut) {
    const std::string_view left = std::string_view(token).substr(0, cut);
    const std::string_view right = std::string_view(token).substr(cut);
    if (ranks.contains(left) && ranks.contains(right)) file.merges.emplace_back(left, right);
  }
}

}  // namespace

bool looks_like_tiktoken(std::string_view text) {
  return parse_line(text.substr(0, std::min(text.find('\n'), text.size()))).has_value();
}

std::string tiktoken_json(std::string_view text, std::string_view name, const std::string& where) {
  ByteLevelFile file{.pieces = read_tokens(text, where)};
  Ranks ranks;
  for (size_t rank = 0; rank < file.pieces.size(); ++rank) {
    const std::string& token = file.pieces[rank];
    if (token.empty()) continue;
    constexpr size_t kLongest = 1024;  // cutting takes the square of a token's length
    require<InputError>(token.size() <= kLongest, where,
                        "the token of rank {} has {} bytes; at most {} can be read", rank,
                        token.size(), kLongest);
    const bool is_new = ranks.emplace(token, static_cast<int32_t>(rank)).second;
    require<InputError>(is_new, where, "the token of rank {} has two ranks", rank);
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    require<InputError>(ranks.contains({&c, 1}), where,
                        "a tiktoken file has a rank for every byte; this one has none for {:#04x}",
                        byte);
  }
  const Encoding& encoding = find_encoding(name, ranks.size(), where);
  for (size_t rank = 0; rank < file.pieces.size(); ++rank) {
    if (file.pieces[rank].size() > 1)
      add_merges(file.pieces[rank], static_cast<int32_t>(rank), ranks, file);
  }
  for (const SpecialToken& special : encoding.specials) {
    const auto id = static_cast<size_t>(special.id);
    require<InputError>(id >= file.pieces.size() || file.pieces[id].empty(), where,
                        "this file has a token of rank {}, which the encoding {} keeps for '{}'",
                        id, encoding.name, special.text);
  }
  file.specials = encoding.specials;
  if (encoding.begins) file.begin = encoding.specials.front();
  file.pattern = encoding.pattern;
  file.normal_form = encoding.normal_form;
  file.whole_words = true;
  return byte_level_json(file);
}

}  // namespace fovea
