// tokenizer.json files against encodings that the `tokenizers` package gave
// (tests/golden/make_tokenizer_cases.py).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/json_tokenizer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>

#include "fovea/base/files.h"
#include "fovea/text/bpe_trainer.h"
#include "fovea/text/normal_form.h"
#include "fovea/text/word_splitter.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace fovea::json_tokenizer_test {
namespace {

using Json = nlohmann::json;

const Json& golden() {
  static const Json cases =
      Json::parse(read_file(FOVEA_SOURCE_DIR "/tests/golden/tokenizers.json"));
  return cases;
}

std::shared_ptr<const Tokenizer> read(const Json& file) {
  return json_tokenizer(file.dump(), {}, "tokenizer.json");
}

TEST(JsonTokenizer, EncodingsAreThoseOfTheTokenizersPackage) {
  int64_t compared = 0;
  for (const auto& [name, item] : golden().items()) {
    const auto tokenizer = read(item["tokenizer"]);
    for (size_t i = 0; i < item["texts"].size(); ++i) {
      const auto text = item["texts"][i].get<std::string>();
      EXPECT_EQ(tokenizer->encode(text), item["ids"][i].get<std::vector<int32_t>>())
          << name << ": " << text;
      ++compared;
    }
  }
  EXPECT_GE(compared, 40);
}

TEST(JsonTokenizer, TheNormalFormIsTheOneThatFilesWereMadeWith) {
  EXPECT_EQ(normal_form("e\u0301 \u212B", NormalForm::c), "\u00E9 \u00C5");
  EXPECT_EQ(normal_form("a\u0316\u0301", NormalForm::c), "\u00E1\u0316")
      << "marks are put in order";
  EXPECT_EQ(normal_form("a\u0301\u0898\u0899", NormalForm::c), "\u00E1\u0898\u0899")
      << "marks of Unicode 14 are ordinary characters";
  EXPECT_EQ(normal_form("\xFF"
                        "e\u0301\xC3",
                        NormalForm::c),
            "\xFF\u00E9\xC3");
}

TEST(JsonTokenizer, PiecesAddUpToTheText) {
  for (const auto& [name, item] : golden().items()) {
    const Json& vocabulary = item["tokenizer"]["model"]["vocab"];
    if (!vocabulary.contains("l")) continue;  // bytes without a token are lost
    const auto tokenizer = read(item["tokenizer"]);
    const bool normalises = !item["tokenizer"]["normalizer"].is_null();
    for (const auto& text : item["texts"]) {
      const auto wanted = text.get<std::string>();
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(wanted)),
                normalises ? normal_form(wanted, NormalForm::c) : wanted)
          << name;
    }
  }
}

TEST(JsonTokenizer, TextCannotForgeSpecialsAndTheTemplateGivesTheBeginMark) {
  BpeTrainer trainer;
  trainer.add("the theme of the thing and the theme of the thing");
  const auto tokenizer = make_bpe_tokenizer(trainer.train(5));
  EXPECT_EQ(tokenizer->vocab_size(), 256 + 5 + 3);
  EXPECT_EQ(tokenizer->bos(), 261);
  EXPECT_EQ(tokenizer->eos(), 262);
  EXPECT_EQ(tokenizer->pad(), 263);
  for (const int32_t token : tokenizer->encode("<|begin|><|end|>")) EXPECT_LT(token, 261);
  EXPECT_EQ(tokenizer->piece(262), "");
}

TEST(JsonTokenizer, PrefixesAndRestGiveTheTokensOfTheWhole) {
  BpeTrainer trainer;
  const std::string text = "def f(x):\n    return x\n\n\ndef g():\n  f(1)\n# end \n";
  trainer.add(text);
  const auto tokenizer = make_bpe_tokenizer(trainer.train(20));
  for (size_t size = 1; size < text.size(); ++size) {
    std::vector<int32_t> tokens;
    std::string waiting = text.substr(0, size);
    waiting.erase(0, tokenizer->append_prefix(waiting, tokens));
    tokenizer->append(waiting + text.substr(size), tokens);
    EXPECT_EQ(tokens, tokenizer->encode(text)) << size;
  }
}

TEST(JsonTokenizer, ItsFileLoadsAgainAsTheSame) {
  const testing::TemporaryFolder folder;
  BpeTrainer trainer;
  trainer.add("over and over and over");
  const auto tokenizer = make_bpe_tokenizer(trainer.train(9));
  write_file(folder / "tokenizer.json", tokenizer->file().content);
  const auto loaded = load_tokenizer(folder.path());
  EXPECT_EQ(loaded->fingerprint(), tokenizer->fingerprint());
  EXPECT_EQ(loaded->kind(), "bpe");
  write_file(folder / "tokenizer_config.json", R"({"eos_token": {"content": "<|pad|>"}})");
  EXPECT_EQ(load_tokenizer(folder.path())->eos(), tokenizer->pad());
  BpeTrainer other;
  other.add("other and other");
  EXPECT_NE(make_bpe_tokenizer(other.train(9))->fingerprint(), tokenizer->fingerprint());
}

// generation_config.json wins over config.json; both may name one id or several.
TEST(JsonTokenizer, FilesOfTheModelNameAllIdsThatEndAText) {
  const testing::TemporaryFolder folder;
  const auto tokenizer = make_bpe_tokenizer({{"a", "b"}});
  const int32_t eos = tokenizer->eos(), pad = tokenizer->pad(), bos = tokenizer->bos();
  write_file(folder / "tokenizer.json", tokenizer->file().content);
  EXPECT_EQ(load_tokenizer(folder.path())->ends(), std::vector<int32_t>{eos});
  write_file(folder / "config.json", fmt::format(R"({{"eos_token_id": {}}})", pad));
  EXPECT_EQ(load_tokenizer(folder.path())->ends(), (std::vector<int32_t>{eos, pad}));
  write_file(folder / "generation_config.json", R"({"eos_token_id": null})");
  EXPECT_EQ(load_tokenizer(folder.path())->ends(), (std::vector<int32_t>{eos, pad}));
  write_file(folder / "generation_config.json",
             fmt::format(R"({{"eos_token_id": [{}, {}]}})", bos, eos));
  EXPECT_EQ(load_tokenizer(folder.path())->ends(), (std::vector<int32_t>{eos, bos}));
  EXPECT_EQ(load_tokenizer(folder.path())->fingerprint(), tokenizer->fingerprint());
  for (const char* wrong : {"\"</s>\"", "[1, \"x\"]", "-1", "1.5", "99999", "[[1]]", "1e300"}) {
    write_file(folder / "generation_config.json", fmt::format(R"({{"eos_token_id": {}}})", wrong));
    EXPECT_ERROR(InputError, load_tokenizer(folder.path()), "eos_token_id");
  }
}

TEST(JsonTokenizer, BytesThatAreNoUtf8SurviveTheRoundTrip) {
  const auto tokenizer = make_bpe_tokenizer({{"a", "b"}});
  const std::string bytes = "ab\xFF\xC0\xE2\x82 ab\x80";
  std::string back;
  for (const int32_t token : tokenizer->encode(bytes)) back += tokenizer->piece(token);
  EXPECT_EQ(back, bytes);
}

TEST(JsonTokenizer, WhatIsNotReadIsRefusedByName) {
  const auto refused = [](const std::string& pointer, const Json& value, const std::string& named) {
    Json file = Json::parse(make_bpe_tokenizer({})->file().content);
    file[Json::json_pointer(pointer)] = value;
    EXPECT_ERROR(UnsupportedError, read(file), named);
  };
  refused("/model/type", "WordPiece", "WordPiece");
  refused("/model/byte_fallback", true, "byte_fallback");
  refused("/normalizer", {{"type", "BertNormalizer"}}, "BertNormalizer");
  refused("/pre_tokenizer", {{"type", "Punctuation"}}, "Punctuation");
  refused("/pre_tokenizer", nullptr, "decoder 'ByteLevel' in a model of characters");
  refused("/pre_tokenizer/add_prefix_space", true, "add_prefix_space");
  const auto damaged = [](const std::string& pointer, const Json& value, const std::string& named) {
    Json file = Json::parse(make_bpe_tokenizer({})->file().content);
    file[Json::json_pointer(pointer)] = value;
    EXPECT_ERROR(InputError, read(file), named);
  };
  damaged("/model/merges", {"a zz"}, "merge 0");
  damaged("/model/vocab/a", -1, "'a'");
  const Json ids[] = {1.5, 1e40, "7", true, std::numeric_limits<uint64_t>::max()};
  for (const Json& id : ids) damaged("/added_tokens/0/id", id, "'id' must be a whole number");
  damaged("/added_tokens/0/id", int64_t{1} << 40, "'content' and 'id'");
  const Json broken = {{"type", "Split"}, {"pattern", {{"Regex", "("}}}, {"behavior", "Isolated"}};
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  damaged("/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {broken, bytes}}}, "pattern");
  EXPECT_ERROR(InputError, json_tokenizer("{", {}, "x.json"), "x.json");
  const std::string deep = "{\"a\":" + std::string(300'000, '[') + std::string(300'000, ']') + "}";
  EXPECT_ERROR(InputError, json_tokenizer(deep, {}, "x.json"), "x.json", "nested deeper");
}

TEST(WordSplitter, KeepsEveryByteAndMatchesOnlyOnRequest) {
  const std::string text = "I'll go \xFF  to 12 \xE2\x82";
  const auto words = [&](WordSplitter::Rule::Keep keep) {
    std::vector<std::string> out;
    WordSplitter({{R"(\p{L}+|\p{N})", keep}}).split(text, [&](std::string_view w) {
      out.emplace_back(w);
    });
    return out;
  };
  std::string all;
  for (const std::string& word : words(WordSplitter::Rule::Keep::isolate)) all += word;
  EXPECT_EQ(all, text);
  EXPECT_EQ(words(WordSplitter::Rule::Keep::matches),
            (std::vector<std::string>{"I", "ll", "go", "\xFF", "to", "1", "2", "\xE2\x82"}));
}

// U+1C89 became a letter in Unicode 16; U+180E is no white space.
TEST(WordSplitter, CategoriesAreThoseOfUnicode16) {
  std::vector<std::string> out;
  WordSplitter({{R"(\p{L}+|\s+)", WordSplitter::Rule::Keep::isolate}})
      .split("a\u1C89 \u180E\u2003", [&](std::string_view w) { out.emplace_back(w); });
  EXPECT_EQ(out, (std::vector<std::string>{"a\u1C89", " ", "\u180E", "\u2003"}));
}

}  // namespace
}  // namespace fovea::json_tokenizer_test
