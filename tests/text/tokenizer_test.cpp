// The tokenizer contract, held by the byte tokenizer.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <set>

#include "fovea/base/error.h"
#include "fovea/base/files.h"

namespace fovea::tokenizer_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string all_bytes() {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  return bytes;
}

class TokenizerFile : public ::testing::Test {
 protected:
  TokenizerFile() { fs::create_directories(folder_); }
  ~TokenizerFile() override { fs::remove_all(folder_); }
  template <class E>
  std::string message_of(const fs::path& path) {
    try {
      load_tokenizer(path);
    } catch (const E& error) {
      return error.what();
    }
    return "nothing was thrown";
  }
  fs::path folder_ = fs::temp_directory_path() / ("fovea-tokenizer-" + std::to_string(getpid()));
};

TEST(ByteTokenizer, EveryByteIsItsOwnToken) {
  const auto tokenizer = byte_tokenizer();
  const std::vector<int32_t> tokens = tokenizer->encode(all_bytes());
  ASSERT_EQ(tokens.size(), 256u);
  for (int i = 0; i < 256; ++i) {
    EXPECT_EQ(tokens[static_cast<size_t>(i)], i);
    EXPECT_EQ(tokenizer->piece(i), std::string(1, static_cast<char>(i)));
    EXPECT_EQ(tokenizer->bytes_of(i), 1);
  }
}

TEST(ByteTokenizer, SpecialsAreTheLastThreeIdsAndHaveNoBytes) {
  const auto tokenizer = byte_tokenizer();
  EXPECT_EQ(tokenizer->vocab_size(), 259);
  EXPECT_EQ(tokenizer->bos(), 256);
  EXPECT_EQ(tokenizer->eos(), 257);
  EXPECT_EQ(tokenizer->pad(), 258);
  for (int32_t id = 256; id < 259; ++id) EXPECT_EQ(tokenizer->bytes_of(id), 0);
}

TEST(ByteTokenizer, TextCannotForgeSpecials) {
  for (const int32_t token : byte_tokenizer()->encode("<|begin|><|end|><|pad|>"))
    EXPECT_LT(token, 256);
}

TEST(ByteTokenizer, AnIdOutsideTheVocabularyIsAnInputError) {
  EXPECT_THROW(byte_tokenizer()->piece(259), InputError);
  EXPECT_THROW(byte_tokenizer()->piece(-1), InputError);
}

TEST(ByteTokenizer, DecodeOfEncodeIsTheTextWhereItIsUtf8) {
  const auto tokenizer = byte_tokenizer();
  const std::string text = "naïve \xE2\x82\xAC and \xF0\x9F\x98\x80,\r\n\ttabs";
  std::vector<int32_t> tokens = tokenizer->encode(text);
  tokens.insert(tokens.begin(), tokenizer->bos());
  tokens.push_back(tokenizer->eos());
  EXPECT_EQ(tokenizer->decode(tokens), text);
}

TEST(IncrementalDecoder, EmitsCharactersOnlyWhenTheyAreWhole) {
  const auto tokenizer = byte_tokenizer();
  IncrementalDecoder decoder(*tokenizer);
  EXPECT_EQ(decoder.push(0xE2), "");
  EXPECT_EQ(decoder.push(0x82), "");
  EXPECT_EQ(decoder.push(0xAC), "\xE2\x82\xAC");
  EXPECT_EQ(decoder.push('x'), "x");
  EXPECT_EQ(decoder.push(0xF0), "");
  EXPECT_EQ(decoder.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(decoder.finish(), "");
}

TEST(IncrementalDecoder, ConcatenationEqualsDecodeForAnyBytes) {
  const auto tokenizer = byte_tokenizer();
  uint64_t state = 1;
  for (int round = 0; round < 200; ++round) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < 40; ++i) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      tokens.push_back(static_cast<int32_t>((state >> 40) % 64 + (round % 2 == 0 ? 0xC0 : 0x80)));
    }
    IncrementalDecoder decoder(*tokenizer);
    std::string pieces;
    for (const int32_t token : tokens) {
      const std::string piece = decoder.push(token);
      EXPECT_EQ(valid_utf8_prefix(piece), piece.size());
      pieces += piece;
    }
    EXPECT_EQ(pieces + decoder.finish(), tokenizer->decode(tokens));
  }
}

TEST(ByteTokenizer, TokenizerJsonIsAByteLevelBpeWithoutMergesWhoseIdsAreTheBytes) {
  const auto json = nlohmann::json::parse(byte_tokenizer()->file().content);
  EXPECT_EQ(json["model"]["type"], "BPE");
  EXPECT_TRUE(json["model"]["merges"].empty());
  EXPECT_EQ(json["pre_tokenizer"]["use_regex"], false);
  const auto& vocabulary = json["model"]["vocab"];
  ASSERT_EQ(vocabulary.size(), 256u);
  EXPECT_EQ(vocabulary["A"], 65);
  EXPECT_EQ(vocabulary["\xC4\xA0"], 32);   // U+0120 stands for the space, as in GPT-2's vocabulary
  EXPECT_EQ(vocabulary["\xC4\x8A"], 10);   // U+010A for the newline
  EXPECT_EQ(vocabulary["\xC5\x83"], 173);  // U+0143, the last of the table
  std::set<int> ids;
  for (const auto& [name, id] : vocabulary.items()) ids.insert(id.get<int>());
  EXPECT_EQ(ids.size(), 256u);
  EXPECT_EQ(json["added_tokens"][1]["content"], "<|end|>");
  EXPECT_EQ(json["added_tokens"][1]["id"], 257);
}

TEST_F(TokenizerFile, LoadsWhatItWrote) {
  write_file(folder_ / "tokenizer.json", byte_tokenizer()->file().content);
  EXPECT_EQ(load_tokenizer(folder_)->fingerprint(), byte_tokenizer()->fingerprint());
  EXPECT_EQ(load_tokenizer(folder_ / "tokenizer.json")->kind(), "bytes");
}

TEST_F(TokenizerFile, LoadsTheSameContentWithKeysInAnotherOrder) {
  const auto sorted = nlohmann::json::parse(byte_tokenizer()->file().content);
  write_file(folder_ / "tokenizer.json", sorted.dump());
  EXPECT_EQ(load_tokenizer(folder_)->kind(), "bytes");
}

TEST_F(TokenizerFile, ANameIsBytesOrAPath) {
  EXPECT_EQ(open_tokenizer("bytes")->kind(), "bytes");
  auto changed = nlohmann::json::parse(byte_tokenizer()->file().content);
  changed["added_tokens"][0]["content"] = "<s>";
  write_file(folder_ / "tokenizer.json", changed.dump());
  EXPECT_EQ(open_tokenizer(folder_.string())->kind(), "bpe");
  EXPECT_THROW(open_tokenizer("no such folder"), InputError);
}

TEST_F(TokenizerFile, AnotherTokenizerIsUnsupportedAndNamed) {
  write_file(folder_ / "tokenizer.json", R"({"model": {"type": "WordLevel"}})");
  EXPECT_THAT(message_of<UnsupportedError>(folder_), HasSubstr("'WordLevel'"));
  auto changed = nlohmann::json::parse(byte_tokenizer()->file().content);
  changed["added_tokens"][0]["content"] = "<s>";
  write_file(folder_ / "tokenizer.json", changed.dump());
  EXPECT_EQ(load_tokenizer(folder_)->kind(), "bpe");  // bytes, but other marks
}

TEST_F(TokenizerFile, MissingOrBrokenFilesAreInputErrors) {
  EXPECT_THAT(message_of<InputError>(folder_), HasSubstr("tokenizer.json"));
  write_file(folder_ / "tokenizer.json", "{\"model\": ");
  EXPECT_THAT(message_of<InputError>(folder_), HasSubstr("no JSON"));
}

}  // namespace
}  // namespace fovea::tokenizer_test
