// Tokenizers of the SentencePiece kinds in tokenizer.json, against what the `tokenizers` package
// made of texts (tests/golden/make_piece_cases.py).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cctype>
#include <nlohmann/json.hpp>

#include "fovea/base/files.h"
#include "fovea/text/json_tokenizer.h"
#include "tests/support/expect_error.h"

namespace fovea::piece_tokenizers_test {
namespace {

using Json = nlohmann::json;

const Json& golden() {
  static const Json cases =
      Json::parse(read_file(FOVEA_SOURCE_DIR "/tests/golden/piece_tokenizers.json"));
  return cases;
}

std::shared_ptr<const Tokenizer> read(const Json& file) {
  return json_tokenizer(file.dump(), {}, "tokenizer.json");
}

TEST(PieceTokenizers, EncodingsAreThoseOfTheTokenizersPackage) {
  int64_t compared = 0;
  for (const auto& [name, item] : golden().items()) {
    const auto tokenizer = read(item["tokenizer"]);
    for (size_t i = 0; i < item["texts"].size(); ++i) {
      const auto text = item["texts"][i].get<std::string>();
      // The package finds special tokens as pieces of a unigram model; a text cannot forge ours.
      if (tokenizer->kind() == "unigram" && text.find("</s>") != std::string::npos) continue;
      EXPECT_EQ(tokenizer->encode(text), item["ids"][i].get<std::vector<int32_t>>())
          << name << ": " << text;
      ++compared;
    }
  }
  EXPECT_GE(compared, 160);
}

TEST(PieceTokenizers, TextThatGoesOnHasTheTokensOfTheWholeBehindItsOwnSpace) {
  int64_t compared = 0;
  for (const auto& [name, item] : golden().items()) {
    const auto tokenizer = read(item["tokenizer"]);
    for (size_t i = 0; i < item["texts"].size(); ++i) {
      const auto text = item["texts"][i].get<std::string>();
      const auto ids = tokenizer->encode(text);
      const bool word = !text.empty() && std::isalpha(static_cast<unsigned char>(text[0])) != 0;
      if (!word || ids.empty() || !tokenizer->piece(ids[0]).starts_with(" ")) continue;
      std::vector<int32_t> behind;
      tokenizer->append_more(" " + text, behind);
      EXPECT_EQ(behind, ids) << name << ": " << text;
      behind.clear();
      tokenizer->append_more(text, behind);
      EXPECT_FALSE(behind.empty() || tokenizer->piece(behind[0]).starts_with(" ")) << text;
      ++compared;
    }
  }
  EXPECT_GE(compared, 20);
}

TEST(PieceTokenizers, DecodingIsThatOfTheTokenizersPackage) {
  for (const auto& [name, item] : golden().items()) {
    const auto tokenizer = read(item["tokenizer"]);
    for (size_t i = 0; i < item["ids"].size(); ++i) {
      EXPECT_EQ(tokenizer->decode(item["ids"][i].get<std::vector<int32_t>>()),
                item["decoded"][i].get<std::string>())
          << name << ": " << item["texts"][i];
    }
  }
}

}  // namespace
}  // namespace fovea::piece_tokenizers_test
