// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/gguf_vocabulary.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "fovea/base/error.h"
#include "fovea/base/nearest_name.h"
#include "fovea/base/printable.h"
#include "fovea/text/byte_names.h"
#include "fovea/text/json_tokenizer.h"
#include "fovea/text/sentencepiece_tokenizer.h"
#include "fovea/text/word_splitter.h"

namespace fovea {
namespace {

using SortedJson = nlohmann::json;

constexpr const char *kModel = "tokenizer.ggml.model", *kPre = "tokenizer.ggml.pre",
                     *kTokens = "tokenizer.ggml.tokens", *kTokenTypes = "tokenizer.ggml.token_type",
                     *kMerges = "tokenizer.ggml.merges", *kBos = "tokenizer.ggml.bos_token_id",
                     *kEnd = "tokenizer.ggml.eos_token_id",
                     *kEndOfTurn = "tokenizer.ggml.eot_token_id",
                     *kEndOfMessage = "tokenizer.ggml.eom_token_id",
                     *kPad = "tokenizer.ggml.padding_token_id",
                     *kAddBegin = "tokenizer.ggml.add_bos_token",
                     *kScores = "tokenizer.ggml.scores",
                     *kSpacePrefix = "tokenizer.ggml.add_space_prefix",
                     *kUnknown = "tokenizer.ggml.unknown_token_id";

/// Values of tokenizer.ggml.token_type; those of SentencePiece.
enum TokenType : int64_t {
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6
};

constexpr std::string_view kDigit = R"(\p{N})";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt2;  // stands for kGpt2Pattern of word_splitter.h

/// What a value of tokenizer.ggml.pre stands for: the rules of the tokenizers that have it.
struct PreTokenizer {
  std::string_view name;
  std::array<std::string_view, 2> patterns;  // one after the other
  size_t count = 1;
  bool normalise = false;    // NFC
  bool whole_words = false;  // ignore_merges
  bool begin = false;        // a begin mark where the file does not say
};
// A tokenizer is written under the first name that fits.
constexpr std::array<PreTokenizer, 15> kPreTokenizers{{
    {.name = "gpt-2", .patterns = {kGpt2}},
    {.name = "smollm", .patterns = {kDigit, kGpt2}, .count = 2},
    {.name = "llama-bpe", .patterns = {kLlama3}, .whole_words = true, .begin = true},
    {.name = "qwen2", .patterns = {kQwen2}, .normalise = true},
    {.name = "dbrx", .patterns = {kLlama3}},
    {.name = "tekken", .patterns = {kTekken}, .whole_words = true, .begin = true},
    {.name = "olmo", .patterns = {kGpt2}, .normalise = true},
    // Other names of the same.
    {.name = "default", .patterns = {kGpt2}},
    {.name = "phi-2", .patterns = {kGpt2}},
    {.name = "starcoder", .patterns = {kDigit, kGpt2}, .count = 2},
    {.name = "refact", .patterns = {kDigit, kGpt2}, .count = 2},
    {.name = "llama3", .patterns = {kLlama3}, .whole_words = true, .begin = true},
    {.name = "llama-v3", .patterns = {kLlama3}, .whole_words = true, .begin = true},
    {.name = "smaug-bpe", .patterns = {kLlama3}},
    {.name = "deepseek-r1-qwen", .patterns = {kQwen2}, .normalise = true},
}};

std::vector<std::string> patterns_of(const PreTokenizer& pre) {
  std::vector<std::string> patterns;
  for (size_t i = 0; i < pre.count; ++i)
    patterns.emplace_back(pre.patterns[i].empty() ? kGpt2Pattern : pre.patterns[i]);
  return patterns;
}

/// The vocabulary's metadata, with checked types.
class Lists {
 public:
  Lists(const GgufMetadata& metadata, const std::string& where)
      : metadata_(metadata), where_(where) {}

  const GgufValue* find(const char* key) const {
    const auto found = metadata_.find(key);
    return found == metadata_.end() ? nullptr : &found->second;
  }
  std::string text(const char* key, const std::string& absent) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return absent;
    require<CheckpointError>(!value->array && value->texts.size() == 1, where_,
                             "'{}' must be a text", key);
    return value->texts[0];
  }
  const std::vector<std::string>& texts(const char* key) const {
    const GgufValue* value = find(key);
    require<CheckpointError>(value != nullptr && value->array && value->type == GgufType::text,
                             where_, "expected '{}', a list of texts; it is missing or another",
                             key);
    return value->texts;
  }
  int64_t integer(const char* key, int64_t absent) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return absent;
    require<CheckpointError>(!value->array && value->integers.size() == 1, where_,
                             "'{}' must be a whole number", key);
    return value->integers[0];
  }
  /// The score of each of `count` pieces.
  const std::vector<double>& scores(size_t count) const {
    const GgufValue* value = find(kScores);
    require<CheckpointError>(value != nullptr && value->array && value->reals.size() == count,
                             where_, "expected '{}', a number for each of {} tokens; got {}",
                             kScores, count, value == nullptr ? 0 : value->reals.size());
    return value->reals;
  }
  /// The text of the token whose id stands under `key`, "" where the key is not there.
  std::string token_of(const char* key, const std::vector<std::string>& tokens) const {
    const int64_t id = integer(key, -1);
    require<CheckpointError>(id >= -1 && id < std::ssize(tokens), where_,
                             "'{}' must be the id of one of {} tokens; got {}", key, tokens.size(),
                             id);
    return id < 0 ? "" : tokens[static_cast<size_t>(id)];
  }
  /// The ids that end a text beside the end mark: end of turn, end of message.
  std::vector<int32_t> ends(size_t count) const {
    std::vector<int32_t> ids;
    for (const char* key : {kEndOfTurn, kEndOfMessage}) {
      const int64_t id = integer(key, -1);
      require<CheckpointError>(id >= -1 && id < static_cast<int64_t>(count), where_,
                               "'{}' must be the id of one of {} tokens; got {}", key, count, id);
      if (id >= 0) ids.push_back(static_cast<int32_t>(id));
    }
    return ids;
  }
  /// The type of each of `count` tokens; normal where the file does not say.
  std::vector<int64_t> types(size_t count) const {
    const GgufValue* value = find(kTokenTypes);
    if (value == nullptr) return std::vector<int64_t>(count, TokenType::normal);
    require<CheckpointError>(value->array && value->integers.size() == count, where_,
                             "'{}' must have a number for each of {} tokens; got {}", kTokenTypes,
                             count, value->integers.size());
    return value->integers;
  }

 private:
  const GgufMetadata& metadata_;
  const std::string& where_;
};

const PreTokenizer& pre_tokenizer(const Lists& lists, const std::string& where) {
  const std::string name = lists.text(kPre, "default");
  std::vector<std::string> known;
  for (const PreTokenizer& pre : kPreTokenizers) {
    if (pre.name == name) return pre;
    known.emplace_back(pre.name);
  }
  fail<UnsupportedError>(
      where, "expected '{}' to be one of {}; got '{}', whose patterns are not known{}", kPre,
      fmt::join(known, ", "), printable_line(name), did_you_mean(name, known));
}

/// The mark first, then the text: what a tokenizer.json says for a begin mark.
SortedJson begin_template(const std::string& text, int64_t id) {
  const SortedJson mark = {{"SpecialToken", {{"id", text}, {"type_id", 0}}}},
                   first = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
                   second = {{"Sequence", {{"id", "B"}, {"type_id", 0}}}};
  SortedJson processor = {{"type", "TemplateProcessing"},
                          {"single", SortedJson::array({mark, first})},
                          {"pair", SortedJson::array({mark, first, second})}};
  processor["special_tokens"][text] = {
      {"id", text}, {"ids", SortedJson::array({id})}, {"tokens", SortedJson::array({text})}};
  return processor;
}

SortedJson split_nodes(const PreTokenizer& pre) {
  SortedJson nodes = SortedJson::array();
  for (const std::string& pattern : patterns_of(pre)) {
    nodes.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", pattern}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  nodes.push_back({{"type", "ByteLevel"},
                   {"add_prefix_space", false},
                   {"trim_offsets", true},
                   {"use_regex", false}});
  return {{"type", "Sequence"}, {"pretokenizers", nodes}};
}

/// The patterns of a pre_tokenizer, appended in order; false for one that GGUF has no name for.
bool collect_patterns(const SortedJson& node, std::vector<std::string>& patterns) {
  if (node.is_null()) return true;
  const auto type = node.value("type", "");
  if (type == "Sequence") {
    return std::ranges::all_of(node["pretokenizers"], [&](const SortedJson& item) {
      return collect_patterns(item, patterns);
    });
  }
  if (type == "ByteLevel") {
    if (node.value("use_regex", true)) patterns.emplace_back(kGpt2Pattern);
    return true;
  }
  if (type == "Digits") {
    patterns.emplace_back(node.value("individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)");
    return true;
  }
  if (type != "Split" || node.value("behavior", "") != "Isolated") return false;
  patterns.push_back(node["pattern"].value("Regex", ""));
  return !patterns.back().empty();
}

bool has_nfc(const SortedJson& node) {
  if (node.is_null()) return false;
  if (node.value("type", "") == "NFC") return true;
  const auto inner = node.find("normalizers");
  return inner != node.end() && std::ranges::any_of(*inner, has_nfc);
}

SortedJson member(const SortedJson& root, const char* key) {
  const auto found = root.find(key);
  return found == root.end() ? SortedJson(nullptr) : *found;
}

bool has_byte_level(const SortedJson& node) {
  if (!node.is_object()) return false;
  const auto inner = node.find("pretokenizers");
  return node.value("type", "") == "ByteLevel" ||
         (inner != node.end() && std::ranges::any_of(*inner, has_byte_level));
}

void require_byte_level(const SortedJson& root) {
  const std::string type = root["model"].value("type", "");
  require<UnsupportedError>(type == "BPE" && has_byte_level(member(root, "pre_tokenizer")), "GGUF",
                            "expected a tokenizer.json of byte-level BPE, or a SentencePiece model "
                            "(tokenizer.model); this "
                            "one is {}: export a model folder",
                            type == "BPE" ? "BPE on characters" : type);
}

/// The name of a tokenizer's patterns. Without merges a text is cut into bytes by any of them.
std::string_view name_of_patterns(const SortedJson& root) {
  const SortedJson& model = root["model"];
  std::vector<std::string> patterns;
  const bool known = collect_patterns(member(root, "pre_tokenizer"), patterns);
  const bool normalise = has_nfc(member(root, "normalizer")),
             whole_words = model.value("ignore_merges", false);
  if (model["merges"].empty() && !normalise && !whole_words) return kPreTokenizers[0].name;
  const auto fits = [&](const PreTokenizer& pre) {
    return known && pre.normalise == normalise && pre.whole_words == whole_words &&
           patterns_of(pre) == patterns;
  };
  const auto found = std::ranges::find_if(kPreTokenizers, fits);
  if (found != kPreTokenizers.end()) return found->name;
  std::vector<std::string_view> names;
  names.reserve(kPreTokenizers.size());
  for (const PreTokenizer& pre : kPreTokenizers) names.push_back(pre.name);
  fail<UnsupportedError>("GGUF",
                         "expected a tokenizer that splits texts as one of {}; this one splits by "
                         "[{}]{}{}, which has no name in GGUF",
                         fmt::join(names, ", "), fmt::join(patterns, "] then ["),
                         normalise ? " after NFC" : "", whole_words ? ", whole words first" : "");
}

/// The vocabulary "llama": the pieces of a SentencePiece model of the algorithm BPE.
SentencePieceModel sentencepiece_model(const Lists& lists, const std::string& where) {
  const std::vector<std::string>& tokens = lists.texts(kTokens);
  const std::vector<double>& scores = lists.scores(tokens.size());
  const std::vector<int64_t> types = lists.types(tokens.size());
  SentencePieceModel model{.algorithm = SentencePieceModel::Algorithm::bpe,
                           .add_dummy_prefix = lists.integer(kSpacePrefix, 1) != 0,
                           .remove_extra_whitespaces = false};
  for (size_t i = 0; i < tokens.size(); ++i) {
    require<CheckpointError>(types[i] >= TokenType::normal && types[i] <= TokenType::byte, where,
                             "'{}' must be 1 to 6 for every token; got {} for token {}",
                             kTokenTypes, types[i], i);
    model.byte_fallback = model.byte_fallback || types[i] == TokenType::byte;
    model.pieces.push_back({tokens[i], static_cast<float>(scores[i]),
                            static_cast<SentencePieceModel::Type>(types[i])});
  }
  model.bos = lists.token_of(kBos, tokens);
  model.eos = lists.token_of(kEnd, tokens);
  model.pad = lists.token_of(kPad, tokens);
  return model;
}

/// A GGUF names three ids that end a text.
void put_ends(const Tokenizer& tokenizer, GgufMetadata& metadata) {
  constexpr std::array kKeys{kEndOfTurn, kEndOfMessage};
  std::vector<int32_t> ends = tokenizer.ends();
  std::erase(ends, tokenizer.eos());
  require<UnsupportedError>(ends.size() <= kKeys.size(), "GGUF",
                            "expected at most {} ids that end a text beside the end mark; got {}; "
                            "export a model folder",
                            kKeys.size(), ends.size());
  for (size_t n = 0; n < ends.size(); ++n) metadata[kKeys[n]] = GgufValue::of_integer(ends[n]);
}

/// The metadata of a SentencePiece model for a model with `count` ids.
GgufMetadata sentencepiece_metadata(const SentencePieceModel& model, const Tokenizer& tokenizer,
                                    size_t count) {
  using Algorithm = SentencePieceModel::Algorithm;
  require<UnsupportedError>(
      model.algorithm == Algorithm::bpe && model.charsmap.empty() &&
          !model.remove_extra_whitespaces && !model.whitespace_as_suffix &&
          model.escape_whitespaces,
      "GGUF",
      "the vocabulary 'llama' is a SentencePiece model of the algorithm BPE without a normalizer; "
      "this one is {}: export a model folder",
      model.algorithm == Algorithm::bpe ? "one with a normalizer" : "of the algorithm Unigram");
  require<ConfigError>(model.pieces.size() <= count, "GGUF",
                       "the tokenizer has {} pieces; the model has {} ids", model.pieces.size(),
                       count);
  std::vector<std::string> tokens;
  std::vector<int64_t> types;
  GgufValue scores{.type = GgufType::float32, .array = true};
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    types.push_back(static_cast<int64_t>(piece.type));
    tokens.push_back(piece.text);
    scores.reals.push_back(piece.score);
  }
  while (tokens.size() < count) {
    tokens.push_back(fmt::format("[PAD{}]", tokens.size()));
    types.push_back(TokenType::unused);
    scores.reals.push_back(0.0);
  }
  GgufMetadata metadata;
  metadata[kModel] = GgufValue::of_text("llama");
  metadata[kPre] = GgufValue::of_text("default");
  metadata[kSpacePrefix] = GgufValue::of_boolean(model.add_dummy_prefix);
  metadata[kAddBegin] = GgufValue::of_boolean(tokenizer.bos() >= 0);
  const auto unknown = std::ranges::find(types, int64_t{TokenType::unknown});
  if (unknown != types.end()) metadata[kUnknown] = GgufValue::of_integer(unknown - types.begin());
  const auto named = [&](const char* key, const std::string& name) {
    const auto found = std::ranges::find(tokens, name);
    if (!name.empty() && found != tokens.end())
      metadata[key] = GgufValue::of_integer(found - tokens.begin());
  };
  named(kBos, model.bos);
  named(kEnd, model.eos);
  named(kPad, model.pad);
  put_ends(tokenizer, metadata);
  metadata[kTokens] = GgufValue::of_texts(std::move(tokens));
  metadata[kTokenTypes] = GgufValue::of_integers(std::move(types));
  metadata[kScores] = std::move(scores);
  return metadata;
}

/// A GGUF cannot say what becomes of bytes without a token; readers drop them.
void refuse_unknown_token(const SortedJson& model) {
  const SortedJson unknown = member(model, "unk_token");
  if (!unknown.is_string()) return;
  const SortedJson& vocabulary = model["vocab"];
  const auto& names = byte_names();
  const auto missing =
      std::ranges::find_if(names, [&](const auto& name) { return !vocabulary.contains(name); });
  if (missing == names.end()) return;
  fail<UnsupportedError>("GGUF",
                         "the tokenizer writes '{}' for bytes without a token (the first is {}), "
                         "which has no place in GGUF: remove model.unk_token from tokenizer.json "
                         "(then such bytes vanish), or export a model folder",
                         printable_line(unknown.get<std::string>()), missing - names.begin());
}

std::string merge_text(const SortedJson& merge) {
  return merge.is_string() ? merge.get<std::string>()
                           : merge[0].get<std::string>() + " " + merge[1].get<std::string>();
}

// Without merges a text becomes single bytes: other plain tokens would stand there for nothing.
void require_no_merges_needed(const std::vector<std::string>& tokens,
                              const std::vector<int64_t>& types, const std::string& where) {
  const auto& bytes = byte_names();
  for (size_t i = 0; i < tokens.size(); ++i)
    require<CheckpointError>(
        types[i] != TokenType::normal || std::ranges::find(bytes, tokens[i]) != bytes.end(), where,
        "'{}' is empty, but token {}, '{}', can only come of merges; write the file again with "
        "those of its tokenizer",
        kMerges, i, printable_line(tokens[i]));
}

}  // namespace

GgufVocabulary gguf_vocabulary(const GgufMetadata& metadata, const std::string& where) {
  const std::string model = Lists(metadata, where).text(kModel, "");
  return model == "gpt2"    ? GgufVocabulary::byte_level_bpe
         : model == "llama" ? GgufVocabulary::sentencepiece
                            : GgufVocabulary::other;
}

TokenizerText gguf_tokenizer_json(const GgufMetadata& metadata, const std::string& where) {
  const Lists lists(metadata, where);
  const PreTokenizer& pre = pre_tokenizer(lists, where);
  const std::vector<std::string>& tokens = lists.texts(kTokens);
  const std::vector<int64_t> types = lists.types(tokens.size());
  const auto count = static_cast<int64_t>(tokens.size());
  const auto id_of = [&](const char* key) {
    const int64_t id = lists.integer(key, -1);
    require<CheckpointError>(id >= -1 && id < count, where,
                             "'{}' must be the id of one of {} tokens; got {}", key, count, id);
    return id;
  };
  const int64_t begin = id_of(kBos), end = id_of(kEnd), pad = id_of(kPad);
  const auto is_special = [&](int64_t i) {
    const int64_t type = types[static_cast<size_t>(i)];
    return type == TokenType::control || type == TokenType::unknown || i == begin || i == end ||
           i == pad;
  };
  int64_t last_plain = -1;
  for (int64_t i = 0; i < count; ++i)
    if (types[static_cast<size_t>(i)] != TokenType::unused && !is_special(i)) last_plain = i;

  // Special tokens behind the vocabulary are added to it; those inside have their places in it.
  std::string vocabulary;
  SortedJson added = SortedJson::array();
  std::unordered_set<std::string_view> names;
  for (int64_t i = 0; i < count; ++i) {
    const std::string& token = tokens[static_cast<size_t>(i)];
    const int64_t type = types[static_cast<size_t>(i)];
    if (type == TokenType::unused) continue;
    require<CheckpointError>(!token.empty() && names.insert(token).second, where,
                             "token {} must have a text of its own; got '{}' again", i,
                             printable_line(token));
    if (i <= last_plain)
      vocabulary +=
          fmt::format("{}\n{}: {}", vocabulary.empty() ? "" : ",", SortedJson(token).dump(), i);
    if (!is_special(i) && type != TokenType::user_defined) continue;
    added.push_back({{"id", i},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", is_special(i)}});
  }
  const std::vector<std::string> merges = lists.texts(kMerges);
  if (merges.empty()) require_no_merges_needed(tokens, types, where);
  const bool begins = lists.integer(kAddBegin, pre.begin ? 1 : 0) != 0 && begin >= 0;
  constexpr const char* kHere = "vocabulary";  // put in as text below
  const SortedJson model = {{"type", "BPE"},
                            {"dropout", nullptr},
                            {"unk_token", nullptr},
                            {"continuing_subword_prefix", nullptr},
                            {"end_of_word_suffix", nullptr},
                            {"fuse_unk", false},
                            {"byte_fallback", false},
                            {"ignore_merges", pre.whole_words},
                            {"vocab", kHere},
                            {"merges", merges}};
  const auto name = [&](int64_t i) { return i < 0 ? "" : tokens[static_cast<size_t>(i)]; };
  const SortedJson root = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added},
      {"normalizer", pre.normalise ? SortedJson{{"type", "NFC"}} : SortedJson(nullptr)},
      {"pre_tokenizer", split_nodes(pre)},
      {"post_processor", begins ? begin_template(name(begin), begin) : SortedJson(nullptr)},
      {"decoder",
       {{"type", "ByteLevel"},
        {"add_prefix_space", false},
        {"trim_offsets", true},
        {"use_regex", false}}},
      {"model", model}};
  TokenizerText text{
      .json = root.dump(1) + "\n",
      .marks = {.eos = name(end), .pad = name(pad), .ends = lists.ends(tokens.size())}};
  const std::string here = fmt::format("\"vocab\": \"{}\"", kHere);
  const size_t place = text.json.rfind(here);  // no text of the file stands behind it
  text.json.replace(place, here.size(), "\"vocab\": {" + vocabulary + "}");
  return text;
}

std::shared_ptr<const Tokenizer> gguf_tokenizer(const GgufMetadata& metadata,
                                                const std::string& where) {
  const std::string model = Lists(metadata, where).text(kModel, "");
  switch (gguf_vocabulary(metadata, where)) {
    case GgufVocabulary::byte_level_bpe:
      break;
    case GgufVocabulary::sentencepiece:
      break;
    case GgufVocabulary::other:
      require<CheckpointError>(!model.empty(), where,
                               "expected '{}'; it is missing: the file has no vocabulary", kModel);
      fail<UnsupportedError>(
          where, "'{}' must be 'gpt2' (byte-level BPE) or 'llama' (SentencePiece); got '{}'",
          kModel, printable_line(model));
  }
  try {
    if (model == "llama") {
      const Lists lists(metadata, where);
      const SentencePieceModel pieces = sentencepiece_model(lists, where);
      return sentencepiece_tokenizer(pieces,
                                     {.eos = pieces.eos,
                                      .pad = pieces.pad,
                                      .adds_bos = lists.integer(kAddBegin, 1) != 0,
                                      .ends = lists.ends(pieces.pieces.size())},
                                     where);
    }
    TokenizerText text = gguf_tokenizer_json(metadata, where);
    return json_tokenizer(std::move(text.json), text.marks, where);
  } catch (const InputError& error) {
    throw CheckpointError(error.what());
  }
}

GgufMetadata gguf_tokenizer_metadata(const Tokenizer& tokenizer, int64_t vocabulary) {
  const TokenizerFile file = tokenizer.file();
  const auto count = static_cast<size_t>(vocabulary);
  if (file.name != "tokenizer.json")
    return sentencepiece_metadata(read_sentencepiece(file.content, "GGUF"), tokenizer, count);
  const SortedJson root = SortedJson::parse(file.content);
  require_byte_level(root);
  std::vector<std::string> tokens(count), merges;
  std::vector<int64_t> types(count, TokenType::unused);
  const auto set = [&](const std::string& text, int64_t id, TokenType type) {
    require<ConfigError>(id < vocabulary, "GGUF", "token '{}' has the id {}; the model has {} ids",
                         printable_line(text), id, vocabulary);
    tokens[static_cast<size_t>(id)] = text;
    types[static_cast<size_t>(id)] = type;
  };
  const SortedJson& model = root["model"];
  refuse_unknown_token(model);
  for (const auto& [text, id] : model["vocab"].items()) set(text, id, TokenType::normal);
  for (const SortedJson& token : member(root, "added_tokens"))
    set(token["content"], token["id"],
        token.value("special", false) ? TokenType::control : TokenType::user_defined);
  for (size_t i = 0; i < count; ++i)
    if (types[i] == TokenType::unused) tokens[i] = fmt::format("[PAD{}]", i);
  for (const SortedJson& merge : model["merges"]) merges.push_back(merge_text(merge));

  GgufMetadata metadata;
  metadata[kModel] = GgufValue::of_text("gpt2");
  metadata[kPre] = GgufValue::of_text(std::string(name_of_patterns(root)));
  metadata[kTokens] = GgufValue::of_texts(std::move(tokens));
  metadata[kTokenTypes] = GgufValue::of_integers(std::move(types));
  metadata[kMerges] = GgufValue::of_texts(std::move(merges));
  metadata[kAddBegin] = GgufValue::of_boolean(tokenizer.bos() >= 0);
  // Where a file names no begin mark, llama.cpp takes the token 11 for one; templates may write it.
  const int32_t begin = tokenizer.bos() >= 0 ? tokenizer.bos() : tokenizer.eos();
  for (const auto& [key, id] :
       {std::pair(kBos, begin), std::pair(kEnd, tokenizer.eos()), std::pair(kPad, tokenizer.pad())})
    if (id >= 0) metadata[key] = GgufValue::of_integer(id);
  put_ends(tokenizer, metadata);
  return metadata;
}

}  // namespace fovea
