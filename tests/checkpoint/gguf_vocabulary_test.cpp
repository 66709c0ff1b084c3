// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/gguf_vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "fovea/base/files.h"
#include "fovea/text/base64.h"
#include "fovea/text/byte_names.h"
#include "fovea/text/sentencepiece_tokenizer.h"
#include "tests/support/expect_error.h"

namespace fovea::gguf_vocabulary_test {
namespace {

using ::testing::ElementsAre;
using Json = nlohmann::json;

/// Bytes, then "ab" and "1a" by merges, a mark inside the vocabulary and two tokens behind it.
GgufMetadata small_vocabulary() {
  std::vector<std::string> tokens{"<|begin|>"}, merges{"a b", "1 a"};
  std::vector<int64_t> types{3};
  for (const std::string& name : byte_names()) tokens.push_back(name);
  tokens.insert(tokens.end(), {"ab", "1a", "<|end|>", "  ", "[PAD261]"});
  types.insert(types.end(), 258, 1);
  types.insert(types.end(), {3, 4, 5});
  GgufMetadata metadata;
  metadata["tokenizer.ggml.model"] = GgufValue::of_text("gpt2");
  metadata["tokenizer.ggml.pre"] = GgufValue::of_text("smollm");
  metadata["tokenizer.ggml.tokens"] = GgufValue::of_texts(tokens);
  metadata["tokenizer.ggml.token_type"] = GgufValue::of_integers(types);
  metadata["tokenizer.ggml.merges"] = GgufValue::of_texts(merges);
  metadata["tokenizer.ggml.bos_token_id"] = GgufValue::of_integer(0);
  metadata["tokenizer.ggml.eos_token_id"] = GgufValue::of_integer(259);
  return metadata;
}

int32_t byte_id(char byte) { return 1 + static_cast<uint8_t>(byte); }

TEST(GgufVocabularies, TokensMergesAndMarksAreThoseOfTheFile) {
  const auto tokenizer = gguf_tokenizer(small_vocabulary(), "x.gguf");
  EXPECT_THAT(tokenizer->encode("xab"), ElementsAre(byte_id('x'), 257));
  EXPECT_THAT(tokenizer->encode("a  a"), ElementsAre(byte_id('a'), 260, byte_id('a')));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("Zoë ab\n")), "Zoë ab\n");
  EXPECT_EQ(tokenizer->encode("<|end|>").size(), 7u) << "a text forged a mark";
  EXPECT_EQ(tokenizer->bos(), -1);
  EXPECT_EQ(tokenizer->eos(), 259);
  EXPECT_EQ(tokenizer->pad(), -1);
  EXPECT_EQ(tokenizer->special_tokens().size(), 2u);
  GgufMetadata begins = small_vocabulary();
  begins["tokenizer.ggml.add_bos_token"] = GgufValue::of_boolean(true);
  EXPECT_EQ(gguf_tokenizer(begins, "x.gguf")->bos(), 0);
}

TEST(GgufVocabularies, EndOfTurnAndEndOfMessageEndATextToo) {
  GgufMetadata metadata = small_vocabulary();
  EXPECT_THAT(gguf_tokenizer(metadata, "x")->ends(), ElementsAre(259));
  metadata["tokenizer.ggml.eot_token_id"] = GgufValue::of_integer(0);
  metadata["tokenizer.ggml.eom_token_id"] = GgufValue::of_integer(260);
  const auto tokenizer = gguf_tokenizer(metadata, "x");
  EXPECT_THAT(tokenizer->ends(), ElementsAre(259, 0, 260));
  EXPECT_THAT(gguf_tokenizer(gguf_tokenizer_metadata(*tokenizer, 262), "x")->ends(),
              ElementsAre(259, 0, 260));
  metadata["tokenizer.ggml.eot_token_id"] = GgufValue::of_integer(262);
  EXPECT_ERROR(CheckpointError, gguf_tokenizer(metadata, "x"), "eot_token_id", "262");
  const auto many = json_tokenizer(tokenizer->file().content, {.ends = {1, 2, 3}}, "many");
  EXPECT_ERROR(UnsupportedError, gguf_tokenizer_metadata(*many, 262), "at most 2", "got 3");
}

TEST(GgufVocabularies, TheNameOfThePatternsDecidesWhereWordsEnd) {
  GgufMetadata metadata = small_vocabulary();
  // smollm cuts at each digit, so "1a" never meets; a pattern of words cuts there too.
  EXPECT_THAT(gguf_tokenizer(metadata, "x")->encode("1a"), ElementsAre(byte_id('1'), byte_id('a')));
  metadata["tokenizer.ggml.merges"] = GgufValue::of_texts({"1 1", "a b"});
  metadata["tokenizer.ggml.tokens"].texts[258] = "11";
  const auto ones = [&](const char* pre) {
    metadata["tokenizer.ggml.pre"] = GgufValue::of_text(pre);
    return gguf_tokenizer(metadata, "x")->encode("1111").size();
  };
  EXPECT_EQ(ones("smollm"), 4u);
  EXPECT_EQ(ones("qwen2"), 4u);
  EXPECT_EQ(ones("gpt-2"), 2u);
  EXPECT_EQ(ones("llama-bpe"), 3u);  // three digits, then one
}

// Encodings that the `tokenizers` package gave.
TEST(GgufVocabularies, TokenizersKeepTheirEncodingsThroughAGguf) {
  const Json golden = Json::parse(read_file(FOVEA_SOURCE_DIR "/tests/golden/tokenizers.json"));
  const std::map<std::string, std::string> names{{"gpt2", "gpt-2"},
                                                 {"numbers of three", "dbrx"},
                                                 {"normal form, runs of spaces", "olmo"},
                                                 {"digits", "smollm"},
                                                 {"bytes without a token", "gpt-2"}};
  for (const auto& [name, expected] : names) {
    const Json& item = golden.at(name);
    const auto before = json_tokenizer(item["tokenizer"].dump(), {}, name);
    const GgufMetadata metadata = gguf_tokenizer_metadata(*before, before->vocab_size() + 3);
    EXPECT_EQ(metadata.at("tokenizer.ggml.pre"), GgufValue::of_text(expected)) << name;
    const auto after = gguf_tokenizer(metadata, name);
    EXPECT_EQ(after->eos(), before->eos()) << name;
    for (size_t i = 0; i < item["texts"].size(); ++i) {
      const auto text = item["texts"][i].get<std::string>();
      EXPECT_EQ(after->encode(text), item["ids"][i].get<std::vector<int32_t>>())
          << name << ": " << text;
    }
    EXPECT_EQ(gguf_tokenizer_metadata(*after, before->vocab_size() + 3), metadata) << name;
  }
}

TEST(GgufVocabularies, PatternsWithoutANameAreRefused) {
  Json root = Json::parse(read_file(FOVEA_SOURCE_DIR "/tests/golden/tokenizers.json"))["gpt2"];
  Json& file = root["tokenizer"];
  const auto write = [&] {
    return gguf_tokenizer_metadata(*json_tokenizer(file.dump(), {}, "x"), 500);
  };
  EXPECT_NO_THROW(write());
  file["pre_tokenizer"]["use_regex"] = false;  // merges run over the ends of words
  EXPECT_ERROR(UnsupportedError, write(), "gpt-2, smollm", "no name in GGUF");
  file["pre_tokenizer"]["use_regex"] = true;
  file["model"]["ignore_merges"] = true;
  EXPECT_ERROR(UnsupportedError, write(), "whole words first");
}

TEST(GgufVocabularies, TokensForUnknownBytesAreRefused) {
  const Json golden = Json::parse(read_file(FOVEA_SOURCE_DIR "/tests/golden/tokenizers.json"));
  for (const char* name : {"bytes become the unknown token", "unknown tokens fuse"}) {
    const auto tokenizer = json_tokenizer(golden.at(name)["tokenizer"].dump(), {}, name);
    EXPECT_ERROR(UnsupportedError, gguf_tokenizer_metadata(*tokenizer, 500), "unk_token");
  }
}

// SentencePiece models that the package made, and its ids.
TEST(GgufVocabularies, SentencePieceModelsKeepTheirEncodingsThroughAGguf) {
  const Json golden = Json::parse(read_file(FOVEA_SOURCE_DIR "/tests/golden/sentencepiece.json"));
  int kept = 0, refused = 0;
  for (const auto& [name, item] : golden.items()) {
    const auto file = *decode_base64(item["model"].get<std::string>());
    SentencePieceModel model = read_sentencepiece(file, name);
    const auto before = sentencepiece_tokenizer(model, {}, name);
    const bool beyond = model.algorithm != SentencePieceModel::Algorithm::bpe ||
                        !model.charsmap.empty() || model.remove_extra_whitespaces ||
                        model.whitespace_as_suffix || !model.escape_whitespaces;
    if (beyond) {
      EXPECT_ERROR(UnsupportedError, gguf_tokenizer_metadata(*before, before->vocab_size()),
                   "SentencePiece model of the algorithm BPE");
      ++refused;
      model.algorithm = SentencePieceModel::Algorithm::bpe;
      model.charsmap.clear();
      model.remove_extra_whitespaces = model.whitespace_as_suffix = false;
      model.escape_whitespaces = true;
    }
    const auto plain = sentencepiece_tokenizer(model, {}, name);
    const GgufMetadata metadata = gguf_tokenizer_metadata(*plain, plain->vocab_size() + 2);
    const auto after = gguf_tokenizer(metadata, name);
    EXPECT_EQ(after->bos(), plain->bos()) << name;
    EXPECT_EQ(after->eos(), plain->eos()) << name;
    for (const Json& text : item["texts"]) {
      const auto bytes = *decode_base64(text.get<std::string>());
      EXPECT_EQ(after->encode(bytes), plain->encode(bytes)) << name << ": " << bytes;
    }
    EXPECT_EQ(gguf_tokenizer_metadata(*after, plain->vocab_size() + 2), metadata) << name;
    ++kept;
  }
  EXPECT_GE(kept, 5);
  EXPECT_GE(refused, 1);
}

TEST(GgufVocabularies, TokenizersOfOtherKindsAreRefused) {
  const Json unigram = {
      {"version", "1.0"},
      {"added_tokens", Json::array()},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "\xE2\x96\x81"}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "Metaspace"}, {"replacement", "\xE2\x96\x81"}}},
      {"model",
       {{"type", "Unigram"},
        {"unk_id", 0},
        {"vocab", Json::array({Json::array({"<unk>", 0.0}), Json::array({"a", -1.0})})}}}};
  EXPECT_ERROR(UnsupportedError,
               gguf_tokenizer_metadata(*json_tokenizer(unigram.dump(), {}, "x"), 5), "Unigram");
}

TEST(GgufVocabularies, TheByteTokenizerKeepsItsIds) {
  const auto bytes = byte_tokenizer();
  const auto after = gguf_tokenizer(gguf_tokenizer_metadata(*bytes, 300), "x");
  EXPECT_EQ(after->encode("Zoë \n"), bytes->encode("Zoë \n"));
  EXPECT_EQ(after->bos(), bytes->bos());
  EXPECT_EQ(after->eos(), bytes->eos());
  EXPECT_EQ(after->pad(), bytes->pad());
}

TEST(GgufVocabularies, WhatIsNotReadIsRefusedByName) {
  const auto set = [&](const std::string& key, const GgufValue& value) {
    GgufMetadata metadata = small_vocabulary();
    metadata[key] = value;
    return gguf_tokenizer(metadata, "x.gguf");
  };
  EXPECT_ERROR(CheckpointError, set("tokenizer.ggml.model", GgufValue::of_text("llama")), "x.gguf",
               "tokenizer.ggml.scores");
  EXPECT_ERROR(UnsupportedError, set("tokenizer.ggml.model", GgufValue::of_text("bert")), "bert");
  EXPECT_ERROR(UnsupportedError, set("tokenizer.ggml.pre", GgufValue::of_text("smolm")),
               "did you mean 'smollm'");
  EXPECT_ERROR(CheckpointError, set("tokenizer.ggml.token_type", GgufValue::of_integers({1, 3})),
               "262 tokens; got 2");
  EXPECT_ERROR(CheckpointError, set("tokenizer.ggml.eos_token_id", GgufValue::of_integer(262)),
               "eos_token_id", "262");
  EXPECT_ERROR(CheckpointError, set("tokenizer.ggml.tokens", GgufValue::of_integers({1})),
               "list of texts");
  EXPECT_ERROR(CheckpointError, set("tokenizer.ggml.merges", GgufValue::of_texts({"a ?"})),
               "merge");
  EXPECT_ERROR(CheckpointError, set("tokenizer.ggml.merges", GgufValue::of_texts({})),
               "tokenizer.ggml.merges", "token 257", "'ab'");
  GgufMetadata twice = small_vocabulary();
  twice["tokenizer.ggml.tokens"].texts[258] = "ab";
  EXPECT_ERROR(CheckpointError, gguf_tokenizer(twice, "x"), "'ab' again");
}

}  // namespace
}  // namespace fovea::gguf_vocabulary_test
