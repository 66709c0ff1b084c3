// Which kind of tokenizer a file or folder holds; tiktoken's rank files.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "fovea/base/files.h"
#include "fovea/base/rng.h"
#include "fovea/text/bpe_trainer.h"
#include "fovea/text/json_tokenizer.h"
#include "fovea/text/sentencepiece_tokenizer.h"
#include "fovea/text/tiktoken.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace fovea::load_tokenizer_test {
namespace {

/// Base64 of up to three bytes, or of more in groups of three.
std::string base64(const std::string& bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t three = 0;
    for (size_t j = 0; j < 3; ++j)
      three = three << 8 | (i + j < bytes.size() ? static_cast<uint8_t>(bytes[i + j]) : 0);
    for (size_t j = 0; j < 4; ++j)
      out += j > bytes.size() - i ? '=' : kDigits[three >> (18 - 6 * j) & 63];
  }
  return out;
}

/// The bytes, then these tokens.
std::string rank_file(const std::vector<std::string>& tokens) {
  std::string file;
  for (int byte = 0; byte < 256; ++byte)
    file += fmt::format("{} {}\n", base64(std::string(1, static_cast<char>(byte))), byte);
  for (size_t i = 0; i < tokens.size(); ++i)
    file += fmt::format("{} {}\n", base64(tokens[i]), 256 + i);
  return file;
}

std::shared_ptr<const Tokenizer> tiktoken(const std::string& file, const char* encoding) {
  return json_tokenizer(tiktoken_json(file, encoding, "ranks"), {}, "ranks");
}

/// tiktoken's definition: of all neighbours that are a token together, the lowest rank first.
std::vector<std::string> encode_slowly(const std::vector<std::string>& tokens,
                                       const std::string& word) {
  if (std::ranges::find(tokens, word) != tokens.end()) return {word};
  std::vector<std::string> parts;
  for (const char c : word) parts.emplace_back(1, c);
  for (;;) {
    size_t best = tokens.size(), place = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto rank =
          static_cast<size_t>(std::ranges::find(tokens, parts[i] + parts[i + 1]) - tokens.begin());
      if (rank < best) best = rank, place = i;
    }
    if (best == tokens.size()) return parts;
    parts[place] += parts[place + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

TEST(Tiktoken, RanksAreMergesOfWhatTheyJoin) {
  const std::vector<std::string> tokens{"ab", "aa", "abc", "aab", "aabc", "bca", "cc"};
  const auto tokenizer = tiktoken(rank_file(tokens), "gpt2");
  Rng rng(4);
  for (int round = 0; round < 300; ++round) {
    std::string word;
    for (uint64_t i = 0; i <= rng.below(90); ++i) word += "aabc"[rng.below(4)];
    std::vector<std::string> pieces;
    for (const int32_t token : tokenizer->encode(word))
      pieces.emplace_back(tokenizer->piece(token));
    EXPECT_EQ(pieces, encode_slowly(tokens, word)) << word;
  }
}

TEST(Tiktoken, TheEncodingBringsSpecialTokensAndTheBeginMark) {
  const auto llama = tiktoken(rank_file({}), "llama3");
  EXPECT_EQ(llama->vocab_size(), 128256);
  EXPECT_EQ(llama->bos(), 128000);
  EXPECT_EQ(llama->eos(), 128001);
  EXPECT_EQ(llama->special_tokens().back().text, "<|reserved_special_token_250|>");
  EXPECT_EQ(tiktoken(rank_file({}), "qwen")->vocab_size(), 151851);
  EXPECT_EQ(tiktoken(rank_file({}), "qwen")->bos(), -1);
  EXPECT_EQ(tiktoken(rank_file({}), "o200k")->encode("McDonald's").size(), 10U);
}

TEST(Tiktoken, DamagedFilesAndUnknownNamesAreErrorsOfOurs) {
  const std::string good = rank_file({"ab"});
  EXPECT_ERROR(InputError, tiktoken(good, "gpt9"), "gpt2, p50k, cl100k, o200k, llama3, qwen");
  EXPECT_ERROR(InputError, tiktoken(good, ""), "257 ranks");
  EXPECT_ERROR(InputError, tiktoken(good.substr(0, good.size() - 3), "gpt2"), "line 257");
  EXPECT_ERROR(InputError, tiktoken(good + "YWM= 256\n", "gpt2"), "second time");
  EXPECT_ERROR(InputError, tiktoken(good + "YWI= 300\n", "gpt2"), "two ranks");
  EXPECT_ERROR(InputError, tiktoken(good.substr(good.find('\n') + 1), "gpt2"), "0x00");
  EXPECT_ERROR(InputError, tiktoken(good + "YWM= 50256\n", "gpt2"), "<|endoftext|>");
  EXPECT_ERROR(InputError, tiktoken(good + "YWM= 99999999999\n", "gpt2"), "line 258");
  for (size_t size = 0; size < good.size(); size += 7) {
    try {
      tiktoken(good.substr(0, size), "gpt2");
      FAIL() << size;
    } catch (const InputError&) {
    }
  }
}

TEST(LoadTokenizer, FindsTheKindByContentAndTheJsonFirst) {
  const testing::TemporaryFolder folder;
  EXPECT_ERROR(InputError, load_tokenizer(folder.path()), "tokenizer.json");
  write_file(folder / "small.tiktoken", rank_file({"ab"}));
  EXPECT_ERROR(InputError, load_tokenizer(folder.path()), "FILE:cl100k");
  const std::string ranks = (folder / "small.tiktoken").string();
  EXPECT_EQ(open_tokenizer(ranks + ":gpt2")->encode("ab"), (std::vector<int32_t>{256}));
  write_file(folder / "tokenizer.model", rank_file({"ba"}));
  EXPECT_EQ(open_tokenizer(folder.path().string() + ":gpt2")->encode("ba"),
            (std::vector<int32_t>{256}));
  const SentencePieceModel model{
      .pieces = {{"<unk>", 0, SentencePieceModel::Type::unknown}, {"a", -1}},
      .algorithm = SentencePieceModel::Algorithm::bpe};
  write_file(folder / "tokenizer.model", write_sentencepiece(model));
  EXPECT_EQ(load_tokenizer(folder.path())->kind(), "sentencepiece");
  EXPECT_ERROR(InputError, load_tokenizer(folder.path(), "gpt2"), "'gpt2' names an encoding");
  write_file(folder / "tokenizer.json", byte_tokenizer()->file().content);
  EXPECT_EQ(load_tokenizer(folder.path())->kind(), "bytes");
  write_file(folder / "weights.bin", "\x08\x01 nothing of the kind");
  EXPECT_ERROR(InputError, load_tokenizer(folder / "weights.bin"), "none of them");
}

}  // namespace
}  // namespace fovea::load_tokenizer_test
