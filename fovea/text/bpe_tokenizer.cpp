// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/bpe_tokenizer.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/text/bpe.h"
#include "fovea/text/byte_names.h"
#include "fovea/text/normal_form.h"
#include "fovea/text/tokenizer_json.h"
#include "fovea/text/word_splitter.h"

namespace fovea {
namespace {

using Json = nlohmann::json;
using Rule = WordSplitter::Rule;

/// A string that is a token wherever it stands in a text (spaces of code, say).
struct TextToken {
  std::string text;
  int32_t id = 0;
};

/// What a tokenizer.json says.
struct Parts {
  std::vector<std::string> pieces;
  std::vector<BpeMerge> merges;
  bool whole_words = false, normalise = false;
  UnknownByte unknown;
  std::vector<Rule> rules;
  std::vector<TextToken> raw_tokens, normal_tokens;  // found before and after normalisation
  std::vector<SpecialToken> specials;
  int32_t bos = -1;
};

/// Reads the parts; every key that would change an encoding is read or refused.
class FileReader {
 public:
  FileReader(const Json& root, std::string where) : root_(root), where_(std::move(where)) {}

  Parts read() {
    read_model(member(root_, "model", "the file"));
    read_added();
    read_normaliser(optional(root_, "normalizer"));
    read_splitter(optional(root_, "pre_tokenizer"));
    require<UnsupportedError>(byte_level_, where_,
                              "expected a byte-level BPE tokenizer (pre_tokenizer ByteLevel); this "
                              "one works on characters");
    find_begin(optional(root_, "post_processor"));
    return std::move(parts_);
  }

 private:
  const Json& member(const Json& object, const char* key, const std::string& of) const {
    const auto found = object.is_object() ? object.find(key) : object.end();
    require<InputError>(object.is_object() && found != object.end(), where_,
                        "expected the key '{}' in {}", key, of);
    return *found;
  }
  static const Json& optional(const Json& object, const char* key) {
    static const Json nothing;
    const auto found = object.find(key);
    return found == object.end() ? nothing : *found;
  }
  template <class T>
  T value(const Json& object, const char* key, T absent) const {
    const Json& found = optional(object, key);
    if (found.is_null()) return absent;
    try {
      return found.get<T>();
    } catch (const Json::exception&) {
      fail<InputError>(where_, "the key '{}' has a value of another type: {}", key, found.dump());
    }
  }
  [[noreturn]] void refuse(const std::string& what) const {
    fail<UnsupportedError>(where_, "this tokenizer uses {}, which is not read", what);
  }

  void read_model(const Json& model) {
    const std::string type = value<std::string>(model, "type", "BPE");
    if (type != "BPE") refuse(fmt::format("a model of type '{}'", type));
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (!value<std::string>(model, key, "").empty()) refuse(fmt::format("'{}'", key));
    if (value<bool>(model, "byte_fallback", false)) refuse("byte_fallback (a SentencePiece model)");
    if (value<double>(model, "dropout", 0.0) != 0) refuse("merges that are dropped at random");
    parts_.whole_words = value<bool>(model, "ignore_merges", false);
    const Json& vocabulary = member(model, "vocab", "'model'");
    require<InputError>(vocabulary.is_object(), where_, "'vocab' must be a map of tokens to ids");
    for (const auto& [name, id] : vocabulary.items()) {
      require<InputError>(id.is_number_integer() && id >= 0 && id < kMostIds, where_,
                          "the id of token '{}' must be 0 to {}; got {}", name, kMostIds,
                          id.dump());
      id_of_[name] = id.get<int32_t>();
      set_piece(id.get<int32_t>(), bytes_of_name(name).value_or(name));
    }
    for (const Json& merge : member(model, "merges", "'model'")) read_merge(merge);
    if (const auto unknown = value<std::string>(model, "unk_token", ""); !unknown.empty()) {
      const auto found = id_of_.find(unknown);
      require<InputError>(found != id_of_.end(), where_,
                          "'unk_token' must be a token of the vocabulary; got '{}'", unknown);
      parts_.unknown = {found->second, value<bool>(model, "fuse_unk", false)};
    }
  }

  // "left right", or since 2024 ["left", "right"].
  void read_merge(const Json& merge) {
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

  void set_piece(int32_t id, std::string bytes) {
    if (parts_.pieces.size() <= static_cast<size_t>(id))
      parts_.pieces.resize(static_cast<size_t>(id) + 1);
    parts_.pieces[static_cast<size_t>(id)] = std::move(bytes);
  }

  void read_added() {
    const Json& list = optional(root_, "added_tokens");
    if (list.is_null()) return;
    for (const Json& token : list) {
      const auto text = value<std::string>(token, "content", "");
      const auto id = value<int64_t>(token, "id", -1);
      require<InputError>(!text.empty() && id >= 0 && id < kMostIds, where_,
                          "an added token needs 'content' and 'id'; got {}", token.dump());
      added_[text] = static_cast<int32_t>(id);
      if (value<bool>(token, "special", false)) {
        parts_.specials.push_back({static_cast<int32_t>(id), text});
        continue;
      }
      for (const char* key : {"single_word", "lstrip", "rstrip"})
        if (value<bool>(token, key, false)) refuse(fmt::format("'{}' of token '{}'", key, text));
      auto& tokens =
          value<bool>(token, "normalized", true) ? parts_.normal_tokens : parts_.raw_tokens;
      tokens.push_back({text, static_cast<int32_t>(id)});
    }
  }

  void read_normaliser(const Json& node) {
    if (node.is_null()) return;
    const auto type = value<std::string>(node, "type", "");
    if (type == "Sequence") {
      for (const Json& item : member(node, "normalizers", "'normalizer'")) read_normaliser(item);
    } else if (type == "NFC") {
      parts_.normalise = true;
    } else {
      refuse(fmt::format("the normalizer '{}'", type));
    }
  }

  void read_splitter(const Json& node) {
    if (node.is_null()) return;
    const auto type = value<std::string>(node, "type", "");
    if (type == "Sequence") {
      for (const Json& item : member(node, "pretokenizers", "'pre_tokenizer'")) read_splitter(item);
    } else if (type == "ByteLevel") {
      if (value<bool>(node, "add_prefix_space", true)) refuse("add_prefix_space");
      if (value<bool>(node, "use_regex", true))
        parts_.rules.push_back({std::string(kGpt2Pattern), Rule::Keep::isolate});
      byte_level_ = true;
    } else if (type == "Digits") {
      parts_.rules.push_back(
          {value<bool>(node, "individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)",
           Rule::Keep::isolate});
    } else if (type == "Split") {
      read_split(node);
    } else {
      refuse(fmt::format("the pre_tokenizer '{}'", type));
    }
  }

  void read_split(const Json& node) {
    const Json& pattern = member(node, "pattern", "'Split'");
    const auto behaviour = value<std::string>(node, "behavior", "");
    const bool invert = value<bool>(node, "invert", false);
    Rule rule;
    if (behaviour == "Removed" && invert) {
      rule.keep = Rule::Keep::matches;
    } else if (behaviour != "Isolated") {
      refuse(fmt::format("Split with behavior '{}'{}", behaviour, invert ? " and invert" : ""));
    }
    rule.pattern = value<std::string>(pattern, "Regex", "");
    if (rule.pattern.empty())
      rule.pattern = "\\Q" + value<std::string>(pattern, "String", "") + "\\E";
    parts_.rules.push_back(std::move(rule));
  }

  /// The first item of the template for one text, where it is a special token.
  void find_begin(const Json& node) {
    if (!node.is_object()) return;
    const auto type = value<std::string>(node, "type", "");
    if (type == "Sequence") {
      for (const Json& item : member(node, "processors", "'post_processor'")) find_begin(item);
    }
    if (type != "TemplateProcessing") return;
    const Json& single = optional(node, "single");
    if (!single.is_array() || single.empty()) return;
    const Json& special = optional(single[0], "SpecialToken");
    if (!special.is_object()) return;
    const auto found = added_.find(value<std::string>(special, "id", ""));
    if (found != added_.end()) parts_.bos = found->second;
  }

  static constexpr int64_t kMostIds = 1 << 22;
  const Json& root_;
  std::string where_;
  Parts parts_;
  std::unordered_map<std::string, int32_t> id_of_;
  std::map<std::string, int32_t> added_;
  bool byte_level_ = false;
};

/// Finds the tokens of a list in a text: leftmost, then longest.
class TokenFinder {
 public:
  explicit TokenFinder(std::vector<TextToken> tokens) : tokens_(std::move(tokens)) {
    std::ranges::stable_sort(tokens_, std::ranges::greater(),
                             [](const TextToken& t) { return t.text.size(); });
    for (size_t i = 0; i < tokens_.size(); ++i)
      by_byte_[static_cast<uint8_t>(tokens_[i].text[0])].push_back(i);
  }
  bool empty() const { return tokens_.empty(); }
  size_t longest() const { return tokens_.empty() ? 0 : tokens_[0].text.size(); }

  /// Calls other(text) for what stands between and found(id) for each token, in order.
  template <class Other, class Found>
  void split(std::string_view text, const Other& other, const Found& found) const {
    size_t done = 0;
    for (size_t i = 0; !tokens_.empty() && i < text.size();) {
      const TextToken* hit = nullptr;
      for (const size_t candidate : by_byte_[static_cast<uint8_t>(text[i])]) {
        if (!text.substr(i).starts_with(tokens_[candidate].text)) continue;
        hit = &tokens_[candidate];
        break;
      }
      if (hit == nullptr) {
        ++i;
        continue;
      }
      if (i > done) other(text.substr(done, i - done));
      found(hit->id);
      done = i += hit->text.size();
    }
    if (done < text.size()) other(text.substr(done));
  }

 private:
  std::vector<TextToken> tokens_;
  std::array<std::vector<size_t>, 256> by_byte_;
};

class BpeTokenizer : public Tokenizer {
 public:
  BpeTokenizer(Parts parts, std::string json, int32_t eos, int32_t pad)
      : pieces_(std::move(parts.pieces)),
        specials_(std::move(parts.specials)),
        bos_(parts.bos),
        eos_(eos),
        pad_(pad),
        normalise_(parts.normalise),
        json_(std::move(json)),
        bpe_(pieces_, parts.merges, parts.whole_words, parts.unknown),
        splitter_(parts.rules),
        raw_(parts.raw_tokens),
        normal_(parts.normal_tokens) {
    const auto set = [&](int32_t id, const std::string& text) {
      if (pieces_.size() <= static_cast<size_t>(id)) pieces_.resize(static_cast<size_t>(id) + 1);
      pieces_[static_cast<size_t>(id)] = text;
    };
    for (const auto* tokens : {&parts.raw_tokens, &parts.normal_tokens})
      for (const TextToken& token : *tokens) set(token.id, token.text);
    for (const SpecialToken& special : specials_) set(special.id, "");
  }

  std::string_view kind() const override { return "bpe"; }
  int64_t vocab_size() const override { return static_cast<int64_t>(pieces_.size()); }
  int32_t bos() const override { return bos_; }
  int32_t eos() const override { return eos_; }
  int32_t pad() const override { return pad_; }
  std::vector<SpecialToken> special_tokens() const override { return specials_; }
  std::string to_json() const override { return json_; }
  uint64_t rules() const override { return fovea::fingerprint(json_); }

  void append(std::string_view text, std::vector<int32_t>& tokens) const override {
    raw_.split(
        text, [&](std::string_view part) { append_plain(part, tokens); },
        [&](int32_t id) { tokens.push_back(id); });
  }

  size_t append_prefix(std::string_view text, std::vector<int32_t>& tokens) const override {
    const size_t cut = safe_cut(text);
    if (cut > 0) append(text.substr(0, cut), tokens);
    return cut;
  }

  std::string_view piece(int32_t token) const override {
    require<InputError>(
        token >= 0 && token < vocab_size(), "tokenizer",
        "expected a token id in [0, {}); got {}; was the text tokenized with another tokenizer?",
        vocab_size(), token);
    return pieces_[static_cast<size_t>(token)];
  }

 private:
  void append_plain(std::string_view text, std::vector<int32_t>& tokens) const {
    if (!normalise_ || surely_normal_form_c(text)) {
      append_normal(text, tokens);
    } else {
      append_normal(normal_form_c(text), tokens);
    }
  }
  void append_normal(std::string_view text, std::vector<int32_t>& tokens) const {
    const auto word = [&](std::string_view w) { bpe_.encode(w, tokens); };
    normal_.split(
        text, [&](std::string_view part) { splitter_.split(part, word); },
        [&](int32_t id) { tokens.push_back(id); });
  }

  std::vector<std::string> pieces_;
  std::vector<SpecialToken> specials_;
  int32_t bos_, eos_, pad_;
  bool normalise_;
  std::string json_;
  Bpe bpe_;
  WordSplitter splitter_;
  TokenFinder raw_, normal_;
};

/// The id of the special token `name`; where the name is not known, of the first usual one.
int32_t mark(const Parts& parts, const std::string& name,
             std::initializer_list<const char*> usual) {
  const auto find = [&](std::string_view text) {
    const auto found = std::ranges::find(parts.specials, text, &SpecialToken::text);
    return found == parts.specials.end() ? -1 : found->id;
  };
  if (!name.empty()) return find(name);
  for (const char* text : usual)
    if (const int32_t id = find(text); id >= 0) return id;
  return -1;
}

}  // namespace

std::shared_ptr<const Tokenizer> bpe_tokenizer(std::string json, const MarkNames& marks,
                                               const std::string& where) {
  const Json root = Json::parse(json, nullptr, false);
  require<InputError>(!root.is_discarded() && root.is_object(), where,
                      "expected a tokenizer.json; got text that is no JSON object; write the file "
                      "again");
  Parts parts = FileReader(root, where).read();
  const int32_t eos =
      mark(parts, marks.eos, {"<|end|>", "<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "</s>"});
  const int32_t pad = mark(parts, marks.pad, {"<|pad|>", "<|padding|>", "<pad>"});
  return std::make_shared<const BpeTokenizer>(std::move(parts), std::move(json), eos, pad);
}

}  // namespace fovea
