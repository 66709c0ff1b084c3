// The byte tokenizer: one token a byte and three specials.
//
// Its tokenizer.json is a byte-level BPE without merges.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "fovea/base/error.h"
#include "fovea/text/tokenizer.h"
#include "fovea/text/tokenizer_json.h"

namespace fovea {
namespace {

constexpr int32_t kBos = 256, kEos = 257, kPad = 258;
constexpr int64_t kVocabulary = 259;

constexpr std::array<char, 256> kBytes = [] {
  std::array<char, 256> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i);
  return bytes;
}();

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
    require_id(token);
    return token < 256 ? std::string_view(&kBytes[static_cast<size_t>(token)], 1)
                       : std::string_view();
  }

  TokenizerFile file() const override {
    ByteLevelFile file{.specials = special_tokens(), .begin = special_tokens().front()};
    for (const char& byte : kBytes) file.pieces.emplace_back(1, byte);
    return {"tokenizer.json", byte_level_json(file)};
  }
};

}  // namespace

std::shared_ptr<const Tokenizer> byte_tokenizer() {
  static const auto tokenizer = std::make_shared<const ByteTokenizer>();
  return tokenizer;
}

}  // namespace fovea
