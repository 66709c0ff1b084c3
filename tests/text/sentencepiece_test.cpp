// SentencePiece models against ids that the `sentencepiece` package gave
// (tests/golden/make_piece_cases.py), and files that are damaged.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cctype>
#include <nlohmann/json.hpp>

#include "fovea/base/files.h"
#include "fovea/base/rng.h"
#include "fovea/text/base64.h"
#include "fovea/text/sentencepiece_tokenizer.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace fovea::sentencepiece_test {
namespace {

using Json = nlohmann::json;
using Type = SentencePieceModel::Type;

const Json& golden() {
  static const Json cases =
      Json::parse(read_file(FOVEA_SOURCE_DIR "/tests/golden/sentencepiece.json"));
  return cases;
}

std::string model_file(const Json& item) {
  return *decode_base64(item["model"].get<std::string>());
}

std::shared_ptr<const Tokenizer> read(const std::string& file) {
  return sentencepiece_tokenizer(read_sentencepiece(file, "m.model"), {}, "m.model");
}

/// Pieces a, b, "ab", all bytes and three marks.
SentencePieceModel small_model() {
  SentencePieceModel model{.pieces = {{"<unk>", 0, Type::unknown},
                                      {"<s>", 0, Type::control},
                                      {"</s>", 0, Type::control},
                                      {"a", -1},
                                      {"b", -2},
                                      {"ab", -3}},
                           .algorithm = SentencePieceModel::Algorithm::bpe,
                           .byte_fallback = true,
                           .remove_extra_whitespaces = false};
  for (int byte = 0; byte < 256; ++byte)
    model.pieces.push_back({fmt::format("<0x{:02X}>", byte), 0, Type::byte});
  return model;
}

TEST(SentencePiece, EncodingsAndTextsAreThoseOfThePackage) {
  int64_t compared = 0;
  for (const auto& [name, item] : golden().items()) {
    const auto tokenizer = read(model_file(item));
    for (size_t i = 0; i < item["texts"].size(); ++i) {
      const auto text = *decode_base64(item["texts"][i].get<std::string>());
      const auto ids = item["ids"][i].get<std::vector<int32_t>>();
      EXPECT_EQ(tokenizer->encode(text), ids) << name << ": " << text;
      const auto decoded = item["decoded"][i].get<std::string>();
      // Nothing is written for the unknown piece, and one space is taken away, not several.
      const bool other = decoded.find("\u2047") != std::string::npos || text.starts_with("\u2581");
      if (!other) {
        EXPECT_EQ(tokenizer->decode(ids), decoded) << name << ": " << text;
      }
      ++compared;
    }
  }
  EXPECT_GE(compared, 90);
}

TEST(SentencePiece, ItsFileLoadsAgainAsTheSame) {
  const testing::TemporaryFolder folder;
  for (const auto& [name, item] : golden().items()) {
    const auto tokenizer = read(model_file(item));
    EXPECT_EQ(tokenizer->file().name, "tokenizer.model");
    write_file(folder / tokenizer->file().name, tokenizer->file().content);
    const auto loaded = load_tokenizer(folder.path());
    EXPECT_EQ(loaded->fingerprint(), tokenizer->fingerprint()) << name;
    EXPECT_EQ(loaded->file().content, tokenizer->file().content) << name;
  }
}

TEST(SentencePiece, MarksAreControlPiecesAndTheConfigMaySayThatNoneBegins) {
  const auto tokenizer = sentencepiece_tokenizer(small_model(), {}, "lists");
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
  EXPECT_EQ(tokenizer->pad(), -1);
  EXPECT_EQ(sentencepiece_tokenizer(small_model(), {.adds_bos = false}, "lists")->bos(), -1);
  for (const int32_t token : tokenizer->encode("<s>")) EXPECT_GT(token, 2);
}

TEST(SentencePiece, StreamedTextNeverHoldsHalfACharacterAndLosesOnlyThePrefix) {
  for (const auto& [name, item] : golden().items()) {
    const auto tokenizer = read(model_file(item));
    for (const auto& ids : item["ids"]) {
      const auto tokens = ids.get<std::vector<int32_t>>();
      IncrementalDecoder start(*tokenizer), middle(*tokenizer, IncrementalDecoder::From::middle);
      std::string from_start, from_middle, bytes;
      for (const int32_t token : tokens) {
        const std::string text = start.push(token);
        EXPECT_EQ(valid_utf8_prefix(text), text.size());
        from_start += text;
        from_middle += middle.push(token);
        bytes += tokenizer->piece(token);
      }
      EXPECT_EQ(from_start + start.finish(), tokenizer->decode(tokens)) << name;
      EXPECT_EQ(from_middle + middle.finish(), repair_utf8(bytes)) << name;
    }
  }
}

// The space that a text begins with is one that text behind other text must bring along.
TEST(SentencePiece, TextThatGoesOnHasTheTokensOfTheWholeBehindItsOwnSpace) {
  int64_t compared = 0;
  for (const auto& [name, item] : golden().items()) {
    const auto tokenizer = read(model_file(item));
    for (size_t i = 0; i < item["texts"].size(); ++i) {
      const auto text = *decode_base64(item["texts"][i].get<std::string>());
      const auto ids = item["ids"][i].get<std::vector<int32_t>>();
      const bool word = !text.empty() && std::isalpha(static_cast<unsigned char>(text[0])) != 0;
      if (!word || ids.empty() || !tokenizer->piece(ids[0]).starts_with(" ")) continue;
      std::vector<int32_t> behind{ids[0]};
      tokenizer->append_more(" " + text, behind);
      EXPECT_EQ(std::vector(behind.begin() + 1, behind.end()), ids) << name << ": " << text;
      std::vector<int32_t> without;
      tokenizer->append_more(text, without);
      EXPECT_FALSE(without.empty() || tokenizer->piece(without[0]).starts_with(" ")) << text;
      ++compared;
    }
  }
  EXPECT_GE(compared, 20);
}

TEST(SentencePiece, MoreIdsMayEndAText) {
  const auto tokenizer = sentencepiece_tokenizer(small_model(), {.ends = {2, 4, 4}}, "lists");
  EXPECT_EQ(tokenizer->ends(), (std::vector<int32_t>{2, 4}));
  EXPECT_TRUE(tokenizer->ends_text(2) && tokenizer->ends_text(4));
  EXPECT_FALSE(tokenizer->ends_text(3) || tokenizer->ends_text(-1));
  EXPECT_EQ(sentencepiece_tokenizer(small_model(), {}, "lists")->ends(), std::vector<int32_t>{2});
  EXPECT_ERROR(InputError, sentencepiece_tokenizer(small_model(), {.ends = {262}}, "lists"),
               "[0, 262); got 262", "eos_token_id");
}

TEST(SentencePiece, ModelsThatContradictThemselvesAreRefused) {
  const auto refused = [](auto change, const char* named) {
    SentencePieceModel model = small_model();
    change(model);
    EXPECT_ERROR(InputError, sentencepiece_tokenizer(model, {}, "lists"), named);
  };
  refused([](auto& m) { m.pieces[3].text = ""; }, "piece 3 is empty");
  refused([](auto& m) { m.pieces[3].text = "b"; }, "pieces 3 and 4 are both 'b'");
  refused([](auto& m) { m.pieces[3].score = std::nanf(""); }, "score of piece 3");
  refused([](auto& m) { m.pieces[0].type = Type::normal; }, "unknown type");
  refused([](auto& m) { m.pieces.pop_back(); }, "256 bytes");
  refused([](auto& m) { m.byte_fallback = false; }, "without byte_fallback");
  refused([](auto& m) { m.pieces[8].text = "<0xZZ>"; }, "'<0xZZ>'");
  refused([](auto& m) { m.pieces.clear(); }, "with pieces; got 0");
  refused([](auto& m) { m.charsmap = "\x10\x00\x00\x00"; }, "character map");
  refused([](auto& m) { m.pieces[3].text = std::string(2000, 'a'); }, "2000 bytes");
}

// Every prefix of a file, and files with bytes changed: a tokenizer or an error of ours.
TEST(SentencePiece, DamagedFilesAreErrorsOfOurs) {
  int64_t refused = 0;
  const auto look = [&](const std::string& file) {
    try {
      const auto tokenizer = read(file);
      tokenizer->decode(tokenizer->encode("a text, \xFF \u00E9"));
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("["), std::string::npos);
      ++refused;
    }
  };
  Rng rng(3);
  for (const auto& [name, item] : golden().items()) {
    const std::string file = model_file(item);
    for (size_t size = 0; size < file.size(); size += 1 + size / 50) look(file.substr(0, size));
    for (int round = 0; round < 100; ++round) {
      std::string changed = file;
      for (int i = 0; i < 3; ++i)
        changed[rng.below(changed.size())] = static_cast<char>(rng.below(256));
      look(changed);
    }
  }
  EXPECT_GE(refused, 100);
  EXPECT_ERROR(InputError, read_sentencepiece("\n\x7Fshort", "x.model"), "x.model");
}

}  // namespace
}  // namespace fovea::sentencepiece_test
