// The byte tokenizer: one token a byte and three specials.
//
// Its tokenizer.json is a byte-level BPE without merges. Such a model writes bytes as printable
// characters (GPT-2's table): the printable bytes of Latin-1 stand for themselves, the others for
// U+0100, U+0101, ... in order.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/text/tokenizer.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

constexpr int32_t kBos = 256, kEos = 257, kPad = 258;
constexpr int64_t kVocabulary = 259;

constexpr std::array<char, 256> kBytes = [] {
  std::array<char, 256> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i);
  return bytes;
}();

bool is_printable_latin1(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// The characters of the table as UTF-8; all are below U+0800.
std::array<std::string, 256> byte_names() {
  std::array<std::string, 256> names;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const int code = is_printable_latin1(byte) ? byte : next++;
    std::string& name = names[static_cast<size_t>(byte)];
    if (code < 0x80) {
      name = static_cast<char>(code);
    } else {
      name = {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
    }
  }
  return names;
}

class ByteTokenizer : public Tokenizer {
 public:
  std::string_view kind() const override { return "bytes"; }
  int64_t vocab_size() const override { return kVocabulary; }
  int32_t bos() const override { return kBos; }
  int32_t eos() const override { return kEos; }
  int32_t pad() const override { return kPad; }
  std::vector<SpecialToken> special_tokens() const override {
    return {{kBos, "<|begin|>"}, {kEos, "<|end|>"}, {kPad, "<|pad|>"}};
  }

  void append(std::string_view text, std::vector<int32_t>& tokens) const override {
    const size_t start = tokens.size();
    tokens.resize(start + text.size());
    for (size_t i = 0; i < text.size(); ++i) tokens[start + i] = static_cast<uint8_t>(text[i]);
  }

  std::string_view piece(int32_t token) const override {
    if (token < 0 || token >= kVocabulary) {
      fail<InputError>(
          "tokenizer",
          "expected a token id in [0, {}); got {}; was the text tokenized with another tokenizer?",
          kVocabulary, token);
    }
    return token < 256 ? std::string_view(&kBytes[static_cast<size_t>(token)], 1)
                       : std::string_view();
  }

  std::string to_json() const override {
    Json vocabulary = Json::object();
    const std::array<std::string, 256> names = byte_names();
    for (size_t byte = 0; byte < names.size(); ++byte) vocabulary[names[byte]] = byte;

    Json added = Json::array();
    for (const SpecialToken& special : special_tokens()) {
      added.push_back({{"id", special.id},
                       {"content", special.text},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", true}});
    }
    const Json byte_level = {{"type", "ByteLevel"},
                             {"add_prefix_space", false},
                             {"trim_offsets", false},
                             {"use_regex", false}};
    const std::string begin = special_tokens().front().text;
    const Json mark = {{"SpecialToken", {{"id", begin}, {"type_id", 0}}}};
    const Json first = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
    const Json second = {{"Sequence", {{"id", "B"}, {"type_id", 0}}}};
    Json processor = {{"type", "TemplateProcessing"},
                      {"single", Json::array({mark, first})},
                      {"pair", Json::array({mark, first, second})}};
    processor["special_tokens"][begin] = {
        {"id", begin}, {"ids", Json::array({kBos})}, {"tokens", Json::array({begin})}};

    const Json model = {{"type", "BPE"},
                        {"dropout", nullptr},
                        {"unk_token", nullptr},
                        {"continuing_subword_prefix", nullptr},
                        {"end_of_word_suffix", nullptr},
                        {"fuse_unk", false},
                        {"byte_fallback", false},
                        {"ignore_merges", false},
                        {"vocab", std::move(vocabulary)},
                        {"merges", Json::array()}};
    const Json file = {{"version", "1.0"},
                       {"truncation", nullptr},
                       {"padding", nullptr},
                       {"added_tokens", std::move(added)},
                       {"normalizer", nullptr},
                       {"pre_tokenizer", byte_level},
                       {"post_processor", std::move(processor)},
                       {"decoder", byte_level},
                       {"model", model}};
    return file.dump(2) + "\n";
  }
};

}  // namespace

std::shared_ptr<const Tokenizer> byte_tokenizer() {
  static const auto tokenizer = std::make_shared<const ByteTokenizer>();
  return tokenizer;
}

}  // namespace fovea
