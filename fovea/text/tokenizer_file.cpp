// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/tokenizer_file.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "fovea/base/error.h"
#include "fovea/text/base64.h"
#include "fovea/text/charsmap.h"
#include "fovea/text/normal_form.h"

namespace fovea {
namespace {

using SortedJson = nlohmann::json;
using Rule = WordSplitter::Rule;

class FileReader {
 public:
  FileReader(const SortedJson& root, std::string where) : root_(root), where_(std::move(where)) {}

  TokenizerParts read() {
    read_splitter(optional(root_, "pre_tokenizer"));
    parts_.takes_any_bytes = byte_level_;
    read_model(member(root_, "model", "the file"));
    read_normalizer(optional(root_, "normalizer"));
    if (!byte_level_) read_decoder(optional(root_, "decoder"));
    make_pieces();
    read_added();
    find_begin(optional(root_, "post_processor"));
    return std::move(parts_);
  }

 private:
  const SortedJson& member(const SortedJson& object, const char* key, const std::string& of) const {
    const auto found = object.is_object() ? object.find(key) : object.end();
    require<InputError>(object.is_object() && found != object.end(), where_,
                        "expected the key '{}' in {}", key, of);
    return *found;
  }
  static const SortedJson& optional(const SortedJson& object, const char* key) {
    static const SortedJson nothing;
    if (!object.is_object()) return nothing;
    const auto found = object.find(key);
    return found == object.end() ? nothing : *found;
  }
  template <class T>
  T value(const SortedJson& object, const char* key, T absent) const {
    const SortedJson& found = optional(object, key);
    if (found.is_null()) return absent;
    if constexpr (std::is_same_v<T, int64_t>) {
      // get() would cut fractions off, and wrap or overflow what int64_t does not hold.
      const bool whole = found.is_number_integer() &&
                         (!found.is_number_unsigned() || found.get<uint64_t>() <= INT64_MAX);
      require<InputError>(whole, where_, "the key '{}' must be a whole number; got {}", key,
                          found.dump());
    }
    try {
      return found.get<T>();
    } catch (const SortedJson::exception&) {
      fail<InputError>(where_, "the key '{}' has a value of another type: {}", key, found.dump());
    }
  }
  std::string type_of(const SortedJson& node) const { return value<std::string>(node, "type", ""); }
  [[noreturn]] void refuse(const std::string& what) const {
    fail<UnsupportedError>(where_, "this tokenizer uses {}, which is not read", what);
  }

  void read_model(const SortedJson& model) {
    const std::string type = value<std::string>(model, "type", "BPE");
    if (type == "BPE") {
      read_bpe(model);
    } else if (type == "Unigram") {
      read_unigram(model);
    } else {
      refuse(fmt::format("a model of type '{}'", type));
    }
  }

  void read_bpe(const SortedJson& model) {
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (!value<std::string>(model, key, "").empty()) refuse(fmt::format("'{}'", key));
    if (value<double>(model, "dropout", 0.0) != 0) refuse("merges that are dropped at random");
    parts_.bpe.whole_words = value<bool>(model, "ignore_merges", false);
    if (!byte_level_) parts_.bpe.unit = BpeOptions::Unit::character;
    const SortedJson& vocabulary = member(model, "vocab", "'model'");
    require<InputError>(vocabulary.is_object(), where_, "'vocab' must be a map of tokens to ids");
    for (const auto& [name, id] : vocabulary.items()) {
      require<InputError>(id.is_number_integer() && id >= 0 && id < kMostIds, where_,
                          "the id of token '{}' must be 0 to {}; got {}", name, kMostIds,
                          id.dump());
      id_of_[name] = id.get<int32_t>();
      set(parts_.names, id.get<int32_t>(), byte_level_ ? bytes_of_name(name).value_or(name) : name);
    }
    for (const SortedJson& merge : member(model, "merges", "'model'")) read_merge(merge);
    if (const auto unknown = value<std::string>(model, "unk_token", ""); !unknown.empty()) {
      const auto found = id_of_.find(unknown);
      require<InputError>(found != id_of_.end(), where_,
                          "'unk_token' must be a token of the vocabulary; got '{}'", unknown);
      parts_.bpe.unknown = {found->second, value<bool>(model, "fuse_unk", false)};
    }
    if (value<bool>(model, "byte_fallback", false)) {
      if (byte_level_) refuse("byte_fallback in a byte-level model");
      parts_.bpe.byte_tokens = byte_tokens();
    }
  }

  void read_unigram(const SortedJson& model) {
    if (byte_level_) refuse("a model of type 'Unigram' on bytes");
    const SortedJson& vocabulary = member(model, "vocab", "'model'");
    require<InputError>(vocabulary.is_array() && vocabulary.size() < kMostIds, where_,
                        "'vocab' must be a list of pairs of token and score");
    double least = std::numeric_limits<double>::infinity();
    for (const SortedJson& entry : vocabulary) {
      const bool pair =
          entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_number();
      require<InputError>(pair, where_, "entry {} of 'vocab' must be a token and its score; got {}",
                          parts_.names.size(), entry.dump());
      id_of_[entry[0]] = static_cast<int32_t>(parts_.names.size());
      parts_.names.push_back(entry[0]);
      parts_.scores.push_back(entry[1]);
      least = std::min(least, parts_.scores.back());
    }
    const auto unknown = value<int64_t>(model, "unk_id", -1);
    require<InputError>(unknown < static_cast<int64_t>(parts_.names.size()), where_,
                        "'unk_id' must be an id of the vocabulary; got {}", unknown);
    constexpr double kPenalty = 10;  // of both packages
    parts_.unigram = {.unknown = static_cast<int32_t>(std::max<int64_t>(unknown, -1)),
                      .unknown_score = least - kPenalty};
    if (value<bool>(model, "byte_fallback", false)) parts_.unigram->byte_tokens = byte_tokens();
    if (unknown >= 0) parts_.names[static_cast<size_t>(unknown)] = "";
  }

  // "left right", or since 2024 ["left", "right"].
  void read_merge(const SortedJson& merge) {
    std::string left, right;
    if (merge.is_string()) {
      const std::string& text = merge.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      left = text.substr(0, space);
      if (space != std::string::npos) right = text.substr(space + 1);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      left = merge[0], right = merge[1];
    }
    const auto a = id_of_.find(left), b = id_of_.find(right), both = id_of_.find(left + right);
    require<InputError>(a != id_of_.end() && b != id_of_.end() && both != id_of_.end(), where_,
                        "merge {} must name two tokens whose union is a token; got {}",
                        parts_.merges.size(), merge.dump());
    parts_.merges.push_back({a->second, b->second, both->second});
  }

  ByteTokens byte_tokens() const {
    ByteTokens tokens = no_byte_tokens();
    for (const auto& [name, id] : id_of_)
      if (const auto byte = named_byte(name)) tokens[*byte] = id;
    return tokens;
  }

  static void set(std::vector<std::string>& list, int32_t id, std::string text) {
    if (list.size() <= static_cast<size_t>(id)) list.resize(static_cast<size_t>(id) + 1);
    list[static_cast<size_t>(id)] = std::move(text);
  }

  void make_pieces() {
    parts_.pieces.reserve(parts_.names.size());
    for (const std::string& name : parts_.names) parts_.pieces.push_back(piece_of(name));
  }
  /// What the decoder makes of a token.
  std::string piece_of(std::string piece) const {
    if (decodes_bytes_) {
      if (const auto byte = named_byte(piece)) return {static_cast<char>(*byte)};
    }
    for (const auto& [from, to] : replaced_) piece = replace_all(piece, from, to);
    return piece;
  }

  void read_added() {
    const SortedJson& list = optional(root_, "added_tokens");
    if (list.is_null()) return;
    for (const SortedJson& token : list) {
      const auto text = value<std::string>(token, "content", "");
      const auto id = value<int64_t>(token, "id", -1);
      require<InputError>(!text.empty() && id >= 0 && id < kMostIds, where_,
                          "an added token needs 'content' and 'id'; got {}", token.dump());
      AddedToken added{.text = text,
                       .id = static_cast<int32_t>(id),
                       .special = value<bool>(token, "special", false),
                       .single_word = value<bool>(token, "single_word", false),
                       .strip_before = value<bool>(token, "lstrip", false),
                       .strip_after = value<bool>(token, "rstrip", false)};
      added_[text] = added.id;
      if (added.special) {
        parts_.specials.push_back({added.id, text});
        if (static_cast<size_t>(id) < parts_.names.size())
          parts_.names[static_cast<size_t>(id)] = "";
      }
      // A normal token is looked for in normal text, and decoded so: by its own normal form.
      const bool normal = value<bool>(token, "normalized", true);
      if (normal && !parts_.normalizer.empty()) added.text = parts_.normalizer.apply(text);
      set(parts_.pieces, added.id, added.special ? "" : piece_of(added.text));
      (normal ? parts_.normal_tokens : parts_.raw_tokens).push_back(std::move(added));
    }
  }

  void read_normalizer(const SortedJson& node) {
    if (node.is_null()) return;
    const auto type = type_of(node);
    const auto add = [&](Normalizer::Step step) {
      parts_.takes_any_bytes = false;
      parts_.normalizer.add(std::move(step));
    };
    if (type == "Sequence") {
      for (const SortedJson& item : member(node, "normalizers", "'normalizer'"))
        read_normalizer(item);
    } else if (type == "NFC") {
      parts_.normalizer.add([](std::string_view text) {
        return surely_normal_form_c(text) ? std::string(text) : normal_form(text, NormalForm::c);
      });
    } else if (type == "NFD") {
      add([](std::string_view text) { return normal_form(text, NormalForm::d); });
    } else if (type == "NFKC") {
      add([](std::string_view text) { return normal_form(text, NormalForm::kc); });
    } else if (type == "NFKD") {
      add([](std::string_view text) { return normal_form(text, NormalForm::kd); });
    } else if (type == "Lowercase") {
      add(lower_case);
    } else if (type == "StripAccents") {
      add(without_marks);
    } else if (type == "Strip") {
      const bool left = value<bool>(node, "strip_left", true);
      const bool right = value<bool>(node, "strip_right", true);
      const Ends ends = left && right ? Ends::both : left ? Ends::left : Ends::right;
      if (left || right)
        add([ends](std::string_view text) { return std::string(strip_spaces(text, ends)); });
    } else if (type == "Prepend") {
      parts_.takes_any_bytes = false;
      parts_.normalizer.add_prefix(
          [prefix = value<std::string>(node, "prepend", "")](std::string_view text) {
            return text.empty() ? std::string() : prefix + std::string(text);
          });
    } else if (type == "Replace") {
      add(replacement(node));
    } else if (type == "Precompiled") {
      const auto bytes = decode_base64(value<std::string>(node, "precompiled_charsmap", ""));
      require<InputError>(bytes.has_value(), where_, "'precompiled_charsmap' must be base64");
      add([map = Charsmap(*bytes, where_)](std::string_view text) {
        return map.apply_to_clusters(text);
      });
    } else {
      refuse(fmt::format("the normalizer '{}'", type));
    }
  }

  Normalizer::Step replacement(const SortedJson& node) const {
    const SortedJson& pattern = member(node, "pattern", "'Replace'");
    const auto content = value<std::string>(node, "content", "");
    const auto regex = value<std::string>(pattern, "Regex", "");
    if (!regex.empty()) {
      return [compiled = Pattern(regex), content](std::string_view text) {
        return replace_all(text, compiled, content);
      };
    }
    const auto from = value<std::string>(pattern, "String", "");
    require<InputError>(!from.empty(), where_, "'Replace' needs a pattern that is not empty");
    return [from, content](std::string_view text) { return replace_all(text, from, content); };
  }

  void read_splitter(const SortedJson& node) {
    if (node.is_null()) return;
    const auto type = type_of(node);
    if (parts_.metaspace) refuse("a pre_tokenizer after Metaspace");
    if (type == "Sequence") {
      for (const SortedJson& item : member(node, "pretokenizers", "'pre_tokenizer'"))
        read_splitter(item);
    } else if (type == "ByteLevel") {
      if (value<bool>(node, "add_prefix_space", true)) refuse("add_prefix_space");
      if (value<bool>(node, "use_regex", true))
        parts_.rules.push_back({std::string(kGpt2Pattern), Rule::Keep::isolate});
      byte_level_ = true;
    } else if (type == "Digits") {
      parts_.rules.push_back(
          {value<bool>(node, "individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)",
           Rule::Keep::isolate});
    } else if (type == "WhitespaceSplit") {
      parts_.rules.push_back({R"(\s+)", Rule::Keep::between});
    } else if (type == "Split") {
      read_split(node);
    } else if (type == "Metaspace") {
      if (byte_level_) refuse("Metaspace after ByteLevel");
      parts_.metaspace = metaspace(node);
    } else {
      refuse(fmt::format("the pre_tokenizer '{}'", type));
    }
  }

  void read_split(const SortedJson& node) {
    const SortedJson& pattern = member(node, "pattern", "'Split'");
    const auto behaviour = value<std::string>(node, "behavior", "");
    const bool invert = value<bool>(node, "invert", false);
    Rule rule;
    if (behaviour == "Removed") {
      rule.keep = invert ? Rule::Keep::matches : Rule::Keep::between;
    } else if (behaviour == "MergedWithPrevious" && !invert) {
      rule.keep = Rule::Keep::with_previous;
    } else if (behaviour != "Isolated") {
      refuse(fmt::format("Split with behavior '{}'{}", behaviour, invert ? " and invert" : ""));
    }
    rule.pattern = value<std::string>(pattern, "Regex", "");
    if (rule.pattern.empty())
      rule.pattern = quoted_pattern(value<std::string>(pattern, "String", ""));
    parts_.rules.push_back(std::move(rule));
  }

  // Files before 2024 say add_prefix_space instead of prepend_scheme.
  Metaspace metaspace(const SortedJson& node) const {
    Metaspace made;
    made.mark = value<std::string>(node, "replacement", made.mark);
    require<InputError>(!made.mark.empty(), where_, "'replacement' of Metaspace is empty");
    const auto scheme = value<std::string>(
        node, "prepend_scheme", value<bool>(node, "add_prefix_space", true) ? "always" : "never");
    require<InputError>(scheme == "always" || scheme == "first" || scheme == "never", where_,
                        "'prepend_scheme' must be always, first or never; got '{}'", scheme);
    made.prepend = scheme == "always"  ? Metaspace::Prepend::always
                   : scheme == "first" ? Metaspace::Prepend::first
                                       : Metaspace::Prepend::never;
    made.split = value<bool>(node, "split", true);
    return made;
  }

  /// What tokens stand for in text. The order of bytes and replacements does not matter: no name of
  /// a byte holds a mark.
  void read_decoder(const SortedJson& node) {
    if (node.is_null()) return;
    const auto type = type_of(node);
    if (type == "Sequence") {
      for (const SortedJson& item : member(node, "decoders", "'decoder'")) read_decoder(item);
    } else if (type == "ByteFallback") {
      decodes_bytes_ = true;
    } else if (type == "Metaspace") {
      const Metaspace spaces = metaspace(node);
      replaced_.emplace_back(spaces.mark, " ");
      if (spaces.prepend != Metaspace::Prepend::never) parts_.text_prefix = " ";
    } else if (type == "Replace") {
      const auto from = value<std::string>(member(node, "pattern", "'Replace'"), "String", "");
      if (from.empty()) refuse("a decoder that replaces a regular expression");
      replaced_.emplace_back(from, value<std::string>(node, "content", ""));
    } else if (type == "Strip") {
      const auto start = value<int64_t>(node, "start", 0), stop = value<int64_t>(node, "stop", 0);
      if (start > 1 || stop > 0) refuse("a decoder that strips more than one character");
      if (value<std::string>(node, "content", "") != " ") refuse("a decoder that strips no space");
      if (start == 1) parts_.text_prefix = " ";
    } else if (type != "Fuse") {
      refuse(fmt::format("the decoder '{}' in a model of characters", type));
    }
  }

  /// The first item of the template for one text, where it is a special token.
  void find_begin(const SortedJson& node) {
    if (!node.is_object()) return;
    const auto type = type_of(node);
    if (type == "Sequence") {
      for (const SortedJson& item : member(node, "processors", "'post_processor'"))
        find_begin(item);
    }
    if (type != "TemplateProcessing") return;
    const SortedJson& single = optional(node, "single");
    if (!single.is_array() || single.empty()) return;
    const SortedJson& special = optional(single[0], "SpecialToken");
    if (!special.is_object()) return;
    const auto found = added_.find(value<std::string>(special, "id", ""));
    if (found != added_.end()) parts_.bos = found->second;
  }

  static constexpr int64_t kMostIds = 1 << 22;
  const SortedJson& root_;
  std::string where_;
  TokenizerParts parts_;
  std::unordered_map<std::string, int32_t> id_of_;
  std::map<std::string, int32_t> added_;
  std::vector<std::pair<std::string, std::string>> replaced_;  // by the decoder
  bool byte_level_ = false, decodes_bytes_ = false;
};

}  // namespace

TokenizerParts read_tokenizer_file(const nlohmann::json& root, const std::string& where) {
  return FileReader(root, where).read();
}

}  // namespace fovea
