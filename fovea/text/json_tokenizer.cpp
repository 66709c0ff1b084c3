// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/json_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <variant>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/base/json_depth.h"
#include "fovea/text/tokenizer_file.h"
#include "fovea/text/tokenizer_json.h"

namespace fovea {
namespace {

using TokenModel = std::variant<Bpe, Unigram>;

TokenModel model_of(const TokenizerParts& parts) {
  if (parts.unigram) return Unigram(parts.names, parts.scores, *parts.unigram);
  return Bpe(parts.names, parts.merges, parts.bpe);
}

class JsonTokenizer : public Tokenizer {
 public:
  JsonTokenizer(TokenizerParts parts, std::string json, int32_t eos, int32_t pad,
                const std::vector<int32_t>& ends, const std::string& where)
      : kind_(parts.unigram ? "unigram" : "bpe"),
        pieces_(std::move(parts.pieces)),
        specials_(std::move(parts.specials)),
        bos_(parts.bos),
        eos_(eos),
        pad_(pad),
        text_prefix_(std::move(parts.text_prefix)),
        takes_any_bytes_(parts.takes_any_bytes),
        json_(std::move(json)),
        normalizer_(std::move(parts.normalizer)),
        model_(model_of(parts)),
        splitter_(parts.rules),
        metaspace_(std::move(parts.metaspace)),
        raw_(std::move(parts.raw_tokens)),
        normal_(std::move(parts.normal_tokens)) {
    set_ends(ends, where);
  }

  std::string_view kind() const override { return kind_; }
  int64_t vocab_size() const override { return static_cast<int64_t>(pieces_.size()); }
  int32_t bos() const override { return bos_; }
  int32_t eos() const override { return eos_; }
  int32_t pad() const override { return pad_; }
  std::vector<SpecialToken> special_tokens() const override { return specials_; }
  std::string_view text_prefix() const override { return text_prefix_; }
  TokenizerFile file() const override { return {"tokenizer.json", json_}; }
  uint64_t rules() const override { return fovea::fingerprint(json_); }

  void append(std::string_view text, std::vector<int32_t>& tokens) const override {
    append_from(Metaspace::Place::start, text, tokens);
  }
  void append_more(std::string_view text, std::vector<int32_t>& tokens) const override {
    append_from(Metaspace::Place::middle, text, tokens);
  }

  size_t append_prefix(std::string_view text, std::vector<int32_t>& tokens) const override {
    // A mark before the text would come again before the rest; other steps may look further.
    if (!takes_any_bytes_) return 0;
    const size_t cut = safe_cut(text);
    if (cut > 0) append(text.substr(0, cut), tokens);
    return cut;
  }

  std::string_view piece(int32_t token) const override {
    require_id(token);
    return pieces_[static_cast<size_t>(token)];
  }

 private:
  using Place = Metaspace::Place;

  void append_from(Place begin, std::string_view text, std::vector<int32_t>& tokens) const {
    if (!takes_any_bytes_ && valid_utf8_prefix(text) != text.size())
      return append_from(begin, repair_utf8(text), tokens);
    raw_.split(
        text,
        [&](std::string_view part) {
          append_plain(part, part.data() == text.data() ? begin : Place::part, tokens);
        },
        [&](int32_t id) { tokens.push_back(id); });
  }
  void append_plain(std::string_view text, Place place, std::vector<int32_t>& tokens) const {
    if (normalizer_.empty()) {
      append_normal(text, place, tokens);
    } else {
      append_normal(normalizer_.apply(text, place == Place::middle), place, tokens);
    }
  }
  void append_normal(std::string_view text, Place place, std::vector<int32_t>& tokens) const {
    const auto encode = [&](std::string_view word) {
      std::visit([&](const auto& model) { model.encode(word, tokens); }, model_);
    };
    const auto word = [&](std::string_view w) {
      if (metaspace_) {
        metaspace_->words(w, w.data() == text.data() ? place : Place::part, encode);
      } else {
        encode(w);
      }
    };
    normal_.split(
        text, [&](std::string_view part) { splitter_.split(part, word); },
        [&](int32_t id) { tokens.push_back(id); });
  }

  std::string_view kind_;
  std::vector<std::string> pieces_;
  std::vector<SpecialToken> specials_;
  int32_t bos_, eos_, pad_;
  std::string text_prefix_;
  bool takes_any_bytes_;
  std::string json_;
  Normalizer normalizer_;
  TokenModel model_;
  WordSplitter splitter_;
  std::optional<Metaspace> metaspace_;
  AddedTokens raw_, normal_;
};

/// The id of the special token `name`; where the name is not known, of the first usual one.
int32_t mark(const TokenizerParts& parts, const std::string& name,
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

std::shared_ptr<const Tokenizer> json_tokenizer(std::string json, const MarkNames& marks,
                                                const std::string& where) {
  require_shallow_json<InputError>(json, where);
  const auto root = nlohmann::json::parse(json, nullptr, false);
  require<InputError>(!root.is_discarded() && root.is_object(), where,
                      "expected a tokenizer.json; got text that is no JSON object; write the file "
                      "again");
  TokenizerParts parts = read_tokenizer_file(root, where);
  const int32_t eos =
      mark(parts, marks.eos, {"<|end|>", "<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "</s>"});
  const int32_t pad = mark(parts, marks.pad, {"<|pad|>", "<|padding|>", "<pad>"});
  return std::make_shared<const JsonTokenizer>(std::move(parts), std::move(json), eos, pad,
                                               marks.ends, where);
}

}  // namespace fovea
