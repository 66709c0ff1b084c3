// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/model_folder.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/checkpoint/safetensors.h"
#include "fovea/text/sentencepiece_tokenizer.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace fovea::model_folder_test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using testing::TemporaryFolder;
using testing::tiny_config;

class ModelFolder : public ::testing::Test {
 protected:
  fs::path save(const ModelConfig& config, uint64_t seed = 3) {
    save_model(folder_ / "m", Transformer(config, seed), *byte_tokenizer());
    return folder_ / "m";
  }
  /// Saves, changes the tensors, writes them back.
  fs::path save_changed(const std::function<void(TensorMap&)>& change) {
    const fs::path path = save(tiny_config());
    TensorMap tensors;
    for (auto& [name, tensor] : SafetensorsFile(path / "model.safetensors").tensors()) {
      tensors[name] = tensor.clone();
    }
    change(tensors);
    write_safetensors(path / "model.safetensors", tensors);
    return path;
  }
  TemporaryFolder folder_;
};

TEST_F(ModelFolder, LoadingGivesTheSavedConfigWeightsAndTokenizer) {
  ModelConfig config = tiny_config();
  config.qk_norm = QkNorm::head_rms;
  config.tied = false;
  config.attention.spec.temperature.kind = TemperatureSpec::Kind::learned;
  config.attention.spec.mask.window = 8;
  config.rope.theta = 12345.5;
  const Transformer model(config, 3);
  save_model(folder_ / "m", model, *byte_tokenizer());
  const LoadedModel loaded = load_model(folder_ / "m");
  EXPECT_EQ(loaded.config, config);
  EXPECT_EQ(loaded.tokenizer->fingerprint(), byte_tokenizer()->fingerprint());
  ASSERT_EQ(loaded.model.parameters().names(), model.parameters().names());
  for (const Parameter& parameter : model.parameters().all()) {
    EXPECT_TRUE(at::equal(loaded.model.parameters().find(parameter.name)->value, parameter.value))
        << parameter.name;
  }
}

TEST_F(ModelFolder, ASentencePieceTokenizerIsSavedAsItsModelAndLoadsAgain) {
  using Type = SentencePieceModel::Type;
  const SentencePieceModel pieces{.pieces = {{"<unk>", 0, Type::unknown},
                                             {"<s>", 0, Type::control},
                                             {"</s>", 0, Type::control},
                                             {"a", -1}},
                                  .algorithm = SentencePieceModel::Algorithm::bpe};
  save(tiny_config());
  for (const bool adds_bos : {true, false}) {
    const auto tokenizer = sentencepiece_tokenizer(pieces, {.adds_bos = adds_bos}, "lists");
    save_model(folder_ / "m", Transformer(tiny_config(), 3), *tokenizer);
    const LoadedModel loaded = load_model(folder_ / "m");
    EXPECT_EQ(loaded.tokenizer->kind(), "sentencepiece") << "not the tokenizer.json from before";
    EXPECT_EQ(loaded.tokenizer->fingerprint(), tokenizer->fingerprint());
    EXPECT_EQ(loaded.tokenizer->bos(), adds_bos ? 1 : -1);
  }
}

TEST_F(ModelFolder, LoadedAndSavedAgainEveryTensorHasItsBytesAndItsFormat) {
  const auto formats = [](TensorMap& tensors) {
    int n = 0;
    for (auto& [name, tensor] : tensors)
      tensor = tensor.to(std::array{at::kBFloat16, at::kHalf, at::kFloat}[n++ % 3]);
  };
  const fs::path path = save_changed(formats);
  const LoadedModel loaded = load_model(path);
  save_model(folder_ / "again", loaded.model, *loaded.tokenizer);
  const SafetensorsFile before(path / "model.safetensors");
  const SafetensorsFile after(folder_ / "again" / "model.safetensors");
  ASSERT_EQ(before.entries().size(), after.entries().size());
  for (const SafetensorsEntry& entry : before.entries()) {
    const at::Tensor was = before.tensor(entry.name), is = after.tensor(entry.name);
    EXPECT_EQ(was.scalar_type(), is.scalar_type()) << entry.name;
    EXPECT_TRUE(at::equal(was, is)) << entry.name;
  }
  const fs::path rounded = folder_ / "rounded";
  save_model(rounded, loaded.model, *loaded.tokenizer, {.dtype = at::kBFloat16});
  const SafetensorsFile asked(rounded / "model.safetensors");
  for (const SafetensorsEntry& entry : asked.entries()) EXPECT_EQ(entry.dtype, at::kBFloat16);
  const auto config = Json::parse(read_file(rounded / "config.json"));
  EXPECT_EQ(config["torch_dtype"], "bfloat16");
}

TEST_F(ModelFolder, MatricesAreReadIntoTheFormatAskedFor) {
  const fs::path path = save(tiny_config());
  const LoadedModel read = load_model(path, at::kCPU, {.plain = at::kBFloat16});
  Transformer rounded(tiny_config(), 3);
  rounded.hold_matrices_in(at::kBFloat16);
  int matrices = 0;
  for (const Parameter& parameter : rounded.parameters().all()) {
    const Parameter& same = *read.model.parameters().find(parameter.name);
    EXPECT_EQ(same.value.scalar_type(), parameter.value.scalar_type()) << parameter.name;
    EXPECT_TRUE(at::equal(same.value, parameter.value)) << parameter.name;
    EXPECT_FALSE(same.trainable || same.value.requires_grad()) << parameter.name;
    matrices += same.value.scalar_type() == at::kBFloat16 ? 1 : 0;
  }
  EXPECT_EQ(matrices, (tiny_config().tied ? 1 : 2) + 7 * tiny_config().layers);
  const LoadedModel trained = load_model(path);
  for (const Parameter& parameter : trained.model.parameters().all())
    EXPECT_TRUE(parameter.value.requires_grad()) << parameter.name;
}

TEST_F(ModelFolder, WhatAFileFillsIsNotDrawnAndWhatItLacksIs) {
  const fs::path path = save(tiny_config(), 3);
  ModelConfig config = tiny_config();
  config.attention.spec.sink_logit = true;
  config = config.resolved(config.vocab_size);
  Transformer awaited(config, 9, at::kCPU, FirstNumbers::awaited);
  for (Parameter& parameter : awaited.parameters().all()) parameter.value.detach().fill_(-7.0);
  EXPECT_FALSE(load_weights(path, awaited).empty());
  const Transformer drawn(config, 9), saved(tiny_config(), 3);
  for (const Parameter& parameter : awaited.parameters().all()) {
    const Parameter* file = saved.parameters().find(parameter.name);
    const Parameter& truth = file != nullptr ? *file : *drawn.parameters().find(parameter.name);
    EXPECT_TRUE(at::equal(parameter.value, truth.value)) << parameter.name;
  }
}

TEST_F(ModelFolder, GroupsOfAnotherWidthAreRefusedByName) {
  ModelConfig config = tiny_config();
  config.attention.spec.focus = {
      .gate = FocusSpec::Gate::log, .groups = 4, .top_k = 1, .window = 4, .width = 6};
  const fs::path path = save(config.resolved(config.vocab_size));
  config.attention.spec.focus.width = 8;
  Transformer wider(config.resolved(config.vocab_size), 1);
  EXPECT_ERROR(CheckpointError, load_weights(path, wider), "focus.centroids", "[4, 8]", "[4, 6]");
  config.attention.spec.focus.width = 6;
  config.attention.spec.focus.groups = 5;
  Transformer more(config.resolved(config.vocab_size), 1);
  EXPECT_ERROR(CheckpointError, load_weights(path, more), "focus.centroids", "[5, 6]");
}

TEST_F(ModelFolder, ConfigJsonSaysWhatHuggingFaceReads) {
  ModelConfig config = tiny_config();
  Json json = Json::parse(read_file(save(config) / "config.json"));
  EXPECT_EQ(json["model_type"], "llama");
  EXPECT_EQ(json["hidden_size"], 16);
  EXPECT_EQ(json["num_key_value_heads"], 1);
  EXPECT_EQ(json["head_dim"], 8);
  EXPECT_EQ(json["intermediate_size"], 32);
  EXPECT_EQ(json["tie_word_embeddings"], true);
  EXPECT_EQ(json["bos_token_id"], byte_tokenizer()->bos());
  config.qk_norm = QkNorm::head_rms;
  json = Json::parse(read_file(save(config) / "config.json"));
  EXPECT_EQ(json["model_type"], "qwen3");
}

TEST_F(ModelFolder, AllIdsThatEndATextAreSavedAndLoadedAgain) {
  SentencePieceModel pieces{.pieces = {{"<unk>", 0, SentencePieceModel::Type::unknown},
                                       {"<s>", 0, SentencePieceModel::Type::control},
                                       {"</s>", 0, SentencePieceModel::Type::control},
                                       {"<turn>", 0, SentencePieceModel::Type::control},
                                       {"a", -1}},
                            .algorithm = SentencePieceModel::Algorithm::bpe,
                            .remove_extra_whitespaces = false};
  const auto tokenizer = sentencepiece_tokenizer(pieces, {.ends = {3}}, "lists");
  const ModelConfig config = tiny_config(tokenizer->vocab_size());
  save_model(folder_ / "m", Transformer(config, 3), *tokenizer);
  EXPECT_EQ(Json::parse(read_file(folder_ / "m" / "config.json"))["eos_token_id"],
            Json::array({2, 3}));
  EXPECT_EQ(load_model(folder_ / "m").tokenizer->ends(), (std::vector<int32_t>{2, 3}));
}

TEST_F(ModelFolder, MissingUnexpectedAndMisshapenTensorsAreNamed) {
  EXPECT_ERROR(CheckpointError,
               load_model(save_changed([](TensorMap& t) { t.erase("model.norm.weight"); })),
               "missing", "model.norm.weight");
  EXPECT_ERROR(CheckpointError,
               load_model(save_changed([](TensorMap& t) { t["model.extra"] = at::ones({2}); })),
               "unexpected", "model.extra");
  EXPECT_ERROR(
      CheckpointError,
      load_model(save_changed([](TensorMap& t) { t["model.norm.weight"] = at::ones({4}); })),
      "model.norm.weight", "[16]", "[4]");
}

TEST_F(ModelFolder, BitsOfFloatsAreNotReadAsIntegers) {
  const fs::path path = save_changed([](TensorMap& tensors) {
    at::Tensor& w = tensors.at("model.layers.1.mlp.up_proj.weight");
    w = w.view(at::kInt).clone();
  });
  EXPECT_ERROR(CheckpointError, load_model(path), "model.layers.1.mlp.up_proj.weight",
               "floating-point", "I32");
}

TEST_F(ModelFolder, WeightsThatAreNoNumbersAreRefusedByName) {
  for (const double value : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    const fs::path path = save_changed([&](TensorMap& tensors) {
      tensors.at("model.layers.0.self_attn.q_proj.weight")[3][5].fill_(value);
    });
    EXPECT_ERROR(NumericalError, load_model(path), "model.layers.0.self_attn.q_proj.weight", "NaN");
    fs::remove_all(path);
  }
}

TEST_F(ModelFolder, LargeWeightsWhoseSumOverflowsAreLoaded) {
  const fs::path path =
      save_changed([](TensorMap& tensors) { tensors.at("model.norm.weight").fill_(3e38); });
  EXPECT_NO_THROW(load_model(path));
}

TEST_F(ModelFolder, AModelThatNoMemoryHoldsIsRefusedBeforeItIsMade) {
  const fs::path path = save(tiny_config());
  Json json = Json::parse(read_file(path / "config.json"));
  json["fovea"]["model"]["context"] = int64_t{1} << 31;
  json["fovea"]["model"]["width"] = 1 << 16;
  json["fovea"]["model"]["head_dim"] = 4096;
  write_file(path / "config.json", json.dump());
  try {
    load_model(path);
    ADD_FAILURE() << "it was made";
  } catch (const std::bad_alloc& error) {
    EXPECT_NE(std::string(error.what()).find("GB"), std::string::npos) << error.what();
  }
}

TEST_F(ModelFolder, MissingAndDamagedFilesAreNamed) {
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json"}) {
    const fs::path path = save(tiny_config());
    fs::remove(path / name);
    EXPECT_ERROR(CheckpointError, load_model(path), name, "missing");
    save(tiny_config());
    fs::resize_file(path / name, 40);
    EXPECT_ERROR(CheckpointError, load_model(path), name);
  }
  const fs::path path = save(tiny_config());
  write_file(path / "config.json", R"({"model_type": "llama", "hidden_size": 16})");
  EXPECT_ERROR(CheckpointError, load_model(path), "config.json", "'vocab_size'");
}

TEST_F(ModelFolder, WeightsOfAPlainModelStartOneWithATemperature) {
  const fs::path path = save(tiny_config(), 3);
  ModelConfig config = tiny_config();
  config.attention.spec.temperature.kind = TemperatureSpec::Kind::learned;
  Transformer model(config, 9);
  const std::vector<std::string> fresh = load_weights(path, model);
  EXPECT_EQ(fresh.size(), 4u);  // weight and bias of two layers
  const Transformer plain(tiny_config(), 3);
  EXPECT_TRUE(at::equal(model.parameters().find("model.norm.weight")->value,
                        plain.parameters().find("model.norm.weight")->value));
  EXPECT_TRUE(at::equal(model.parameters().find("model.embed_tokens.weight")->value,
                        plain.parameters().find("model.embed_tokens.weight")->value));
}

}  // namespace
}  // namespace fovea::model_folder_test
