// Folders that transformers wrote (tests/peers/check_transformers.py --write-golden), and what
// config.json says.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/families.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "fovea/base/files.h"
#include "fovea/checkpoint/fold.h"
#include "fovea/checkpoint/model_folder.h"
#include "fovea/checkpoint/safetensors.h"
#include "fovea/checkpoint/weight_files.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace fovea::families_test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using testing::tiny_config;

fs::path golden(const std::string& family) {
  return FOVEA_SOURCE_DIR "/tests/golden/hugging_face/" + family;
}

at::Tensor logits_of(const Transformer& model, const at::Tensor& tokens) {
  const at::NoGradGuard no_grad;
  return model.logits(model.hidden({.tokens_bt = tokens.unsqueeze(0)}))[0];
}

double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

Json golden_config(const std::string& family) {
  return Json::parse(read_file(golden(family) / "config.json"));
}

ModelConfig read_changed(const std::string& family, const std::function<void(Json&)>& change) {
  Json json = golden_config(family);
  change(json);
  return config_from_hugging_face(json, "config.json");
}

// Spec 8.8: a tiny random model of the reference implementation gives the same logits. qwen3 is
// sharded.
TEST(Families, LogitsAreThoseOfTransformers) {
  for (const std::string family :
       {"llama", "mistral", "qwen3", "llama_biases", "llama3", "yarn", "linear", "dynamic", "qwen2",
        "olmo2", "gemma2", "cohere", "cohere2", "diffllama", "gpt2"}) {
    Transformer model(load_model_config(golden(family)), 0);
    EXPECT_THAT(load_weights(golden(family), model), ::testing::IsEmpty());
    const SafetensorsFile expected(golden(family) / "expected.safetensors");
    EXPECT_LT(
        relative_difference(logits_of(model, expected.tensor("tokens")), expected.tensor("logits")),
        1e-5)
        << family;
  }
}

TEST(Families, ConfigsOfTransformersAreReadKeyByKey) {
  const ModelConfig llama = read_changed("llama", [](Json&) {});
  EXPECT_EQ(llama.width, 16);
  EXPECT_EQ(llama.kv_heads, 2);
  EXPECT_EQ(llama.head_dim, 4);
  EXPECT_EQ(llama.rope.theta, 500000.0);
  EXPECT_TRUE(llama.tied);
  const ModelConfig mistral = read_changed("mistral", [](Json&) {});
  EXPECT_EQ(mistral.attention.spec.mask.window, 5);
  EXPECT_EQ(mistral.head_dim, 8);
  EXPECT_FALSE(mistral.tied);
  EXPECT_EQ(read_changed("qwen3", [](Json&) {}).qk_norm, QkNorm::head_rms);
  // The older dialect, and keys that older files leave out.
  const ModelConfig older = read_changed("llama", [](Json& j) {
    j.erase("rope_parameters");
    j.erase("head_dim");
    j["rope_theta"] = 1e6;
    j["num_key_value_heads"] = nullptr;
    j["rope_scaling"] = nullptr;
  });
  EXPECT_EQ(older.rope.theta, 1e6);
  EXPECT_EQ(older.kv_heads, 4);
  EXPECT_EQ(read_changed("mistral", [](Json& j) { j["sliding_window"] = nullptr; })
                .attention.spec.mask.window,
            0);
}

TEST(Families, WhatTheDecoderDoesNotHaveIsRefusedByName) {
  const auto refused = [](const std::string& family, const std::string& key, const Json& value,
                          const std::string& named) {
    EXPECT_ERROR(UnsupportedError, read_changed(family, [&](Json& j) { j[key] = value; }), named,
                 "config.json");
  };
  refused("llama", "model_type", "gptj", "gptj");
  refused("llama", "model_type", "qwen4", "did you mean 'qwen2'");
  refused("mistral", "attention_bias", true, "attention_bias");
  refused("qwen3", "mlp_bias", true, "mlp_bias");
  refused("llama", "hidden_act", "gelu", "hidden_act");
  refused("gemma2", "hidden_activation", "gelu", "hidden_activation");
  refused("cohere", "use_qk_norm", true, "use_qk_norm");
  refused("gpt2", "scale_attn_by_inverse_layer_idx", true, "scale_attn_by_inverse_layer_idx");
  refused("gpt2", "activation_function", "relu", "activation_function");
  refused("llama", "rope_scaling", {{"type", "longrope"}, {"factor", 2.0}}, "longrope");
  refused("llama", "partial_rotary_factor", 0.5, "partial_rotary_factor");
  refused("qwen3", "layer_types", {"full_attention", "chunked_attention"}, "chunked_attention");
  EXPECT_ERROR(CheckpointError, read_changed("llama", [](Json& j) { j.erase("hidden_size"); }),
               "'hidden_size'", "missing");
  EXPECT_ERROR(CheckpointError, read_changed("llama", [](Json& j) { j["hidden_size"] = "16"; }),
               "'hidden_size'", "whole number");
  EXPECT_ERROR(CheckpointError,
               read_changed("llama", [](Json& j) { j["num_key_value_heads"] = 3; }), "config.json");
}

// Layers are counted one by one, and sizes are multiplied, before the whole is checked.
TEST(Families, DamagedSizesAreErrorsAtOnce) {
  const auto damaged = [](const std::string& family, const std::string& key, const Json& value) {
    EXPECT_ERROR(CheckpointError, read_changed(family, [&](Json& j) { j[key] = value; }), key,
                 "config.json");
  };
  for (const Json& layers : {Json(2055555555555), Json(0), Json(-1), Json(1025), Json(1e40)}) {
    damaged("mistral", "num_hidden_layers", layers);
    damaged("gpt2", "n_layer", layers);
  }
  const Json sizes[] = {int64_t{1} << 62, std::numeric_limits<uint64_t>::max(),
                        std::numeric_limits<int64_t>::min()};
  for (const Json& size : sizes) {
    damaged("llama", "hidden_size", size);
    damaged("gpt2", "n_embd", size);
  }
}

ModelConfig gemma() {
  ModelConfig c = tiny_config();
  c.block = BlockLayout::sandwich;
  c.feed_forward = FeedForward::geglu_tanh;
  c.embedding_scale = 0.0;
  c.logit_cap = 30.0;
  c.attention.spec.soft_cap = 50.0;
  c.attention.spec.mask.window = 4;
  c.attention.full.layers = {1};
  c.attention.spec.temperature.value = 0.5;
  return c;
}

// A checkpoint goes on bit for bit; only an export takes the family's way of storing weights.
TEST(Families, StoreWeightsTheirWayOnExportAndExactlyInCheckpoints) {
  ModelConfig gpt2 = tiny_config();
  gpt2.positions = Positions::learned;
  gpt2.norm = NormKind::layer;
  gpt2.feed_forward = FeedForward::gelu_tanh;
  gpt2.biases = {true, true, true};
  gpt2.kv_heads = gpt2.heads;
  for (const ModelConfig& config : {gemma(), gpt2}) {
    const Transformer model(config, 3);
    const testing::TemporaryFolder folder;
    save_model(folder.path() / "export", model, *byte_tokenizer());
    save_model(folder.path() / "exact", model, *byte_tokenizer(), {.exact = true});
    const WeightFiles theirs(folder.path() / "export"), ours(folder.path() / "exact");
    EXPECT_TRUE(theirs.find("transformer.wte.weight") != nullptr ||
                !at::equal(theirs.tensor("model.norm.weight"), ours.tensor("model.norm.weight")));
    const Transformer from_export = load_model(folder.path() / "export").model,
                      from_exact = load_model(folder.path() / "exact").model;
    for (const Parameter& p : model.parameters().all()) {
      EXPECT_TRUE(at::equal(from_exact.parameters().find(p.name)->value, p.value)) << p.name;
      EXPECT_TRUE(at::allclose(from_export.parameters().find(p.name)->value, p.value)) << p.name;
    }
  }
}

TEST(Families, ConfigsOfTheFamiliesSurviveWritingAndReading) {
  std::vector<ModelConfig> configs(12, tiny_config());
  configs[1].tied = false;
  configs[2].qk_norm = QkNorm::head_rms;
  configs[3].attention.spec.mask.window = 4;
  configs[4].qk_norm = QkNorm::head_rms;
  configs[4].attention.spec.mask.window = 4;
  configs[5].rope.scaling = {.kind = RopeScaling::Kind::llama3, .factor = 2, .original_context = 8};
  configs[6].biases = {.qkv = true};
  configs[7].biases = {true, true, true};
  configs[8].block = BlockLayout::output;
  configs[8].qk_norm = QkNorm::full_rms;
  configs[9].block = BlockLayout::parallel;
  configs[9].norm = NormKind::layer_no_bias;
  configs[9].rope.layout = RopeLayout::interleaved;
  configs[10] = gemma();
  configs[11].positions = Positions::learned;
  configs[11].norm = NormKind::layer;
  configs[11].feed_forward = FeedForward::gelu_tanh;
  configs[11].biases = {true, true, true};
  configs[11].kv_heads = configs[11].heads;
  const std::vector<std::string> types{"llama", "llama", "qwen3", "mistral", "qwen3",  "llama",
                                       "qwen2", "llama", "olmo2", "cohere",  "gemma2", "gpt2"};
  for (size_t i = 0; i < configs.size(); ++i) {
    EXPECT_THAT(not_in_hugging_face(configs[i]), ::testing::IsEmpty()) << i;
    const Json json = model_config_json(configs[i], *byte_tokenizer());
    EXPECT_EQ(json["model_type"], types[i]);
    EXPECT_EQ(config_from_hugging_face(json, "config.json"), configs[i]) << i;
  }
}

TEST(Families, WhatNoFamilyCanSayIsNamedAndOtherProgramsRefuseTheFolder) {
  ModelConfig config = tiny_config();
  config.dropout = 0.1;  // in training only
  config.attention.temperature_per_layer = {1.0, 1.0};
  EXPECT_THAT(not_in_hugging_face(config), ::testing::IsEmpty());
  config.attention.temperature_per_layer = {0.4, 1.0};
  config.attention.spec.soft_cap = 5;
  config.attention.spec.mask.sinks = 1;
  config.attention.spec.mask.window = 4;
  config.rope.rotary_dim = 4;
  EXPECT_THAT(not_in_hugging_face(config),
              ::testing::UnorderedElementsAre(
                  "attention.soft_cap", "attention.mask.sinks", "rope.rotary_dim",
                  "attention.temperature_per_layer.0", "attention.temperature_per_layer.1"));
  EXPECT_EQ(model_config_json(config, *byte_tokenizer())["model_type"], "fovea");
}

// F-5: standard attention with a larger W_q or q gain.
TEST(Fold, AConstantTemperatureGoesIntoTheWeights) {
  for (const QkNorm norm :
       {QkNorm::none, QkNorm::head_rms, QkNorm::full_rms, QkNorm::head_layer, QkNorm::l2}) {
    ModelConfig config = tiny_config();
    config.qk_norm = norm;
    config.attention.temperature_per_layer = {0.4, 0.7};
    config.attention.spec.soft_cap = 3;
    Transformer model(config, 5), folded = fold_constants(model);
    EXPECT_THAT(not_in_hugging_face(folded.config()), ::testing::Contains("attention.soft_cap"));
    // In float64 the rounding of the weights is all that differs, whatever the processor.
    for (Transformer* of : {&model, &folded}) of->compute().dtype = at::kDouble;
    const at::Tensor tokens = at::arange(12) * 17 % 259;
    EXPECT_LT(relative_difference(logits_of(folded, tokens), logits_of(model, tokens)), 1e-6);
    EXPECT_GT(relative_difference(logits_of(Transformer(folded.config(), 5), tokens),
                                  logits_of(model, tokens)),
              1e-4);
  }
  ModelConfig erased = tiny_config();
  erased.qk_norm = QkNorm::weightless;
  erased.attention.spec.temperature.value = 0.5;
  EXPECT_ERROR(UnsupportedError, fold_constants(Transformer(erased, 0)), "weightless");
  ModelConfig learned = tiny_config();
  learned.attention.spec.temperature.kind = TemperatureSpec::Kind::learned;
  EXPECT_ERROR(UnsupportedError, fold_constants(Transformer(learned, 0)), "learned");
}

// M-8: the factor of the norms is a factor of their weights and biases.
TEST(Fold, FactorsOfNormsGoIntoTheirWeights) {
  for (const auto& [block, norm] : {std::pair{BlockLayout::pre, NormKind::rms},
                                    {BlockLayout::pre, NormKind::layer},
                                    {BlockLayout::sandwich, NormKind::rms},
                                    {BlockLayout::parallel, NormKind::layer_no_bias},
                                    {BlockLayout::parallel_two, NormKind::layer}}) {
    for (const auto scale :
         {HeadOutputSpec::DepthScale::lambda, HeadOutputSpec::DepthScale::inverse_sqrt}) {
      ModelConfig config = tiny_config();
      config.block = block;
      config.norm = norm;
      config.norm_depth_scale = scale;
      Transformer model(config, 5);
      const at::NoGradGuard no_grad;
      for (Parameter& p : model.parameters().all())
        if (p.name.ends_with("bias")) p.value.add_(0.3);
      EXPECT_THAT(not_in_hugging_face(model.config()), ::testing::Contains("norm_depth_scale"));
      Transformer folded = fold_constants(model);
      EXPECT_EQ(folded.config().norm_depth_scale, HeadOutputSpec::DepthScale::none);
      const at::Tensor tokens = at::arange(12) * 17 % 259;
      EXPECT_LT(relative_difference(logits_of(folded, tokens), logits_of(model, tokens)), 1e-6);
      ModelConfig without = config;
      without.norm_depth_scale = HeadOutputSpec::DepthScale::none;
      EXPECT_GT(
          relative_difference(logits_of(Transformer(without, 5), tokens), logits_of(model, tokens)),
          1e-3);
    }
  }
  ModelConfig weightless = tiny_config();
  weightless.norm = NormKind::rms_weightless;
  weightless.norm_depth_scale = HeadOutputSpec::DepthScale::lambda;
  EXPECT_ERROR(UnsupportedError, fold_constants(Transformer(weightless, 0)), "rms_weightless");
  ModelConfig folding = tiny_config();
  folding.norm_depth_scale = HeadOutputSpec::DepthScale::lambda;
  EXPECT_EQ(model_config_json(fold_constants(Transformer(folding, 0)).config(),
                              *byte_tokenizer())["model_type"],
            "llama");
}

}  // namespace
}  // namespace fovea::families_test
