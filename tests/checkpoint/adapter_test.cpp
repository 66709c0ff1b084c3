// Adapters apart from their base: merged and unmerged, PEFT folders there and back, refusals
// (spec 5.1, 5.2).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/adapter.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "fovea/base/files.h"
#include "fovea/checkpoint/families.h"
#include "fovea/checkpoint/fold.h"
#include "fovea/checkpoint/model_folder.h"
#include "fovea/nn/lora.h"
#include "tests/support/expect_error.h"
#include "tests/support/gradcheck.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace fovea::adapter_test {
namespace {

using namespace fovea::testing;
using Json = nlohmann::ordered_json;
using ::testing::ElementsAre;

ModelConfig gpt2_config() {
  ModelConfig c;
  c.vocab_size = 259;
  c.layers = 2, c.width = 16, c.heads = 2, c.ffn_width = 64, c.context = 16;
  c.norm = NormKind::layer;
  c.feed_forward = FeedForward::gelu_tanh;
  c.positions = Positions::learned;
  c.biases = {.qkv = true, .output = true, .feed_forward = true};
  return c.resolved(259);
}

Transformer adapted(ModelConfig config, LoraSettings lora) {
  config.lora = std::move(lora);
  Transformer model(config.resolved(config.vocab_size), 3);
  const at::NoGradGuard no_grad;
  for (Parameter& p : model.parameters().all()) {
    if (p.name.ends_with(".lora_B.weight"))
      initialise(p.value, {.kind = Init::Kind::normal, .value = 0.2}, 9, p.name);
  }
  return model;
}

at::Tensor outputs(const Transformer& model) {
  const at::NoGradGuard no_grad;
  const ModelInput input{.tokens_bt = at::arange(24).remainder(97).view({2, 12})};
  return model.logits(model.hidden(input));
}

double base_difference(const Transformer& a, const Transformer& b) {
  double most = 0.0;
  for (const Parameter& p : a.parameters().all()) {
    if (is_lora(p.name)) continue;
    const at::Tensor other = b.parameters().find(p.name)->value;
    most = std::max(most, (p.value - other).abs().max().item<double>());
  }
  return most;
}

std::vector<LoraSettings> settings() {
  return {{.rank = 3},
          {.rank = 4, .alpha = 6.0, .rslora = true, .targets = {"all-linear"}},
          {.rank = 2, .targets = {"qkv_proj", "o_proj", "down_proj"}},
          {.rank = 4,
           .targets = {"layers.1.self_attn.k_proj", "up_proj"},
           .modules = {{.module = "layers.0.mlp.up_proj", .rank = 2},
                       {.module = "k_proj", .alpha = 3.5}}}};
}

TEST(Adapter, MergedComputesWhatUnmergedComputesAndUnmergingGivesTheBaseBack) {
  for (const LoraSettings& lora : settings()) {
    const Transformer model = adapted(tiny_config(), lora);
    const Transformer merged = merge_adapter(model), base = without_adapter(model);
    EXPECT_FALSE(merged.config().lora.active());
    EXPECT_LT(relative_error(outputs(merged), outputs(model)), 2e-6);
    EXPECT_GT(relative_error(outputs(base), outputs(model)), 1e-3);
    const Transformer apart = unmerge_adapter(merged, adapter_of(model));
    EXPECT_LT(base_difference(apart, model), 1e-7);
    EXPECT_LT(relative_error(outputs(apart), outputs(model)), 2e-6);
  }
}

TEST(Adapter, OnAndOffChangesNoBit) {
  const Transformer model = adapted(tiny_config(), {.rank = 3});
  const Transformer base = without_adapter(model), again = with_adapter(base, adapter_of(model));
  EXPECT_EQ(base_difference(base, model), 0.0);
  EXPECT_TRUE(outputs(again).equal(outputs(model)));
  EXPECT_EQ(again.config(), model.config());
}

class AdapterFolder : public ::testing::Test {
 protected:
  std::filesystem::path write(const Transformer& model) {
    Adapter adapter = adapter_of(model);
    adapter.base_name = "some/base";
    write_adapter(folder_ / "a", model.config(), adapter);
    return folder_ / "a";
  }
  Json config() { return Json::parse(read_file(folder_ / "a" / "adapter_config.json")); }
  /// Changes one key of the written folder and reads it for `base`.
  template <class E>
  ::testing::AssertionResult refused(const std::string& key, const Json& value,
                                     const std::vector<std::string>& parts) {
    Json json = config();
    json[key] = value;
    write_file(folder_ / "a" / "adapter_config.json", json.dump());
    const std::function<void()> read = [this] { read_adapter(folder_ / "a", tiny_config()); };
    const auto result = throws_naming<E>(read, parts);
    write_three();
    return result;
  }
  std::filesystem::path write_three() {
    LoraSettings lora;
    lora.rank = 3;
    return write(adapted(tiny_config(), lora));
  }
  TemporaryFolder folder_;
};

TEST_F(AdapterFolder, WrittenAndReadGivesTheSameFunction) {
  for (const LoraSettings& lora : settings()) {
    const Transformer model = adapted(tiny_config(), lora);
    const Adapter adapter = read_adapter(write(model), tiny_config());
    EXPECT_EQ(adapter.base_name, "some/base");
    const Transformer again = with_adapter(without_adapter(model), adapter);
    EXPECT_LT(relative_error(outputs(again), outputs(model)), 2e-6);
    if (lora.targets[0] != "qkv_proj") {
      EXPECT_TRUE(outputs(again).equal(outputs(model)));
    }
  }
}

TEST_F(AdapterFolder, NamesAndKeysAreThoseOfPeft) {
  const auto path = write(adapted(tiny_config(), settings()[3]));
  const Json json = config();
  EXPECT_EQ(json["peft_type"], "LORA");
  EXPECT_EQ(json["r"], 4);
  EXPECT_EQ(json["use_rslora"], false);
  EXPECT_EQ(json["fan_in_fan_out"], false);
  EXPECT_EQ(json["target_modules"], Json({"layers.1.self_attn.k_proj", "up_proj"}));
  EXPECT_EQ(json["rank_pattern"], Json({{"layers.0.mlp.up_proj", 2}}));
  EXPECT_EQ(json["alpha_pattern"], Json({{"layers.1.self_attn.k_proj", 3.5}}));
  const SafetensorsFile file(path / "adapter_model.safetensors");
  EXPECT_EQ(file.entries().size(), 6u);
  const at::Tensor a =
      file.tensor("base_model.model.model.layers.1.self_attn.k_proj.lora_A.weight");
  EXPECT_THAT(a.sizes().vec(), ElementsAre(4, 16));
}

// GPT-2 stores queries, keys and values in one transposed matrix; A and B are never transposed.
TEST_F(AdapterFolder, Gpt2HasTheModulesOfConv1d) {
  const Transformer model =
      adapted(gpt2_config(), {.rank = 3, .targets = {"qkv_proj", "down_proj"}});
  const Adapter adapter = read_adapter(write(model), gpt2_config());
  const Json json = config();
  EXPECT_EQ(json["fan_in_fan_out"], true);
  EXPECT_EQ(json["target_modules"], Json({"attn.c_attn", "mlp.c_proj"}));
  const SafetensorsFile file(folder_ / "a" / "adapter_model.safetensors");
  EXPECT_THAT(
      file.tensor("base_model.model.transformer.h.0.attn.c_attn.lora_B.weight").sizes().vec(),
      ElementsAre(48, 3));
  EXPECT_TRUE(outputs(with_adapter(without_adapter(model), adapter)).equal(outputs(model)));
  EXPECT_LT(relative_error(outputs(merge_adapter(model)), outputs(model)), 2e-6);
  EXPECT_ERROR(UnsupportedError, write(adapted(gpt2_config(), {.rank = 3})), "GPT-2", "qkv_proj");
}

TEST_F(AdapterFolder, PatternsAreEndsOfNamesOrRegularExpressions) {
  write(adapted(tiny_config(), {.rank = 3, .alpha = 6.0}));
  Json json = config();
  json["alpha_pattern"] = {{"layers\\.1\\..*q_proj", 30}, {"v_proj", 12}};
  write_file(folder_ / "a" / "adapter_config.json", json.dump());
  const Adapter adapter = read_adapter(folder_ / "a", tiny_config());
  std::vector<double> alphas;
  ModelConfig c = tiny_config();
  for (const LoraPlace& p : lora_places(adapter.settings, c)) alphas.push_back(p.alpha);
  EXPECT_THAT(alphas, ElementsAre(6.0, 12.0, 30.0, 12.0));
}

TEST_F(AdapterFolder, OtherMathematicsAreRefusedByName) {
  write(adapted(tiny_config(), {.rank = 3}));
  EXPECT_TRUE(refused<UnsupportedError>("peft_type", "LOHA", {"LOHA", "LORA"}));
  EXPECT_TRUE(refused<UnsupportedError>("use_dora", true, {"use_dora"}));
  EXPECT_TRUE(refused<UnsupportedError>("lora_bias", true, {"lora_bias"}));
  EXPECT_TRUE(refused<UnsupportedError>("bias", "all", {"bias", "all"}));
  EXPECT_TRUE(refused<UnsupportedError>("modules_to_save", {"lm_head"}, {"modules_to_save"}));
  EXPECT_TRUE(refused<UnsupportedError>("init_lora_weights", "pissa", {"pissa"}));
  EXPECT_TRUE(refused<UnsupportedError>("layer_replication", {{0, 1}}, {"layer_replication"}));
  EXPECT_TRUE(refused<UnsupportedError>("a_key_of_tomorrow", 3, {"a_key_of_tomorrow"}));
  EXPECT_TRUE(refused<CheckpointError>("use_rslora", "yes", {"use_rslora", "yes"}));
  EXPECT_TRUE(refused<CheckpointError>("r", "three", {"'r'", "three"}));
  EXPECT_TRUE(refused<CheckpointError>("lora_alpha", -2, {"alpha", "-2"}));
  EXPECT_TRUE(refused<CheckpointError>("alpha_pattern", {{"q_proj", 0}}, {"alpha_pattern"}));
  EXPECT_TRUE(refused<CheckpointError>("alpha_pattern", {{"q_(", 1}}, {"pattern"}));
}

TEST_F(AdapterFolder, AdaptersForAnotherBaseAreRefused) {
  const auto path = write(adapted(tiny_config(), {.rank = 3}));
  ModelConfig wide = tiny_config(), shallow = tiny_config();
  wide.width = 32, wide.heads = 4, wide.head_dim = 8, wide.kv_heads = 2;
  shallow.layers = 1;
  EXPECT_ERROR(CheckpointError, read_adapter(path, wide), "q_proj", "another base", "[3, 16]");
  EXPECT_ERROR(CheckpointError, read_adapter(path, shallow), "layers.1", "another base");
  EXPECT_ERROR(CheckpointError, read_adapter(path, gpt2_config()), "another base");
  EXPECT_ERROR(CheckpointError, read_adapter(folder_ / "none", wide), "adapter_config.json");
  write_file(path / "adapter_config.json",
             "{\"r\":" + std::string(300'000, '[') + std::string(300'000, ']') + "}");
  EXPECT_ERROR(CheckpointError, read_adapter(path, wide), "adapter_config.json", "nested deeper");
  write_file(path / "adapter_config.json", "[1");
  EXPECT_ERROR(CheckpointError, read_adapter(path, tiny_config()), "JSON");
}

TEST_F(AdapterFolder, PairsWithoutTheirHalfAndStrangeTensorsAreRefused) {
  const auto path = write(adapted(tiny_config(), {.rank = 3})) / "adapter_model.safetensors";
  const auto changed = [&](const std::function<void(TensorMap&)>& change) {
    TensorMap tensors;
    for (auto& [name, x] : SafetensorsFile(path).tensors()) tensors[name] = x.clone();
    change(tensors);
    write_safetensors(path, tensors);
    return throws_naming<CheckpointError>([&] { read_adapter(folder_ / "a", tiny_config()); },
                                          {"adapter_model.safetensors"});
  };
  const std::string layer = "base_model.model.model.layers.0.self_attn.q_proj.";
  EXPECT_TRUE(changed([&](TensorMap& t) { t["base_model.model.lm_head.weight"] = at::ones({2}); }));
  write(adapted(tiny_config(), {.rank = 3}));
  EXPECT_TRUE(changed([&](TensorMap& t) { t.erase(layer + "lora_B.weight"); }));
  write(adapted(tiny_config(), {.rank = 3}));
  EXPECT_TRUE(changed([&](TensorMap& t) { t[layer + "lora_A.weight"] = at::ones({2, 16}); }));
}

TEST(Adapter, ModelsAreRefusedWhereTheyHaveOneTooManyOrNone) {
  const Transformer base(tiny_config(), 3), model = adapted(tiny_config(), {.rank = 3});
  EXPECT_ERROR(UnsupportedError, adapter_of(base), "no adapter", "model.lora");
  EXPECT_ERROR(UnsupportedError, merge_adapter(base), "no adapter");
  EXPECT_ERROR(UnsupportedError, with_adapter(model, adapter_of(model)), "merge it");
  EXPECT_ERROR(UnsupportedError, fold_constants(model), "merge");
}

// A model folder holds an adapter like any other parameter, and says that others cannot read it.
TEST_F(AdapterFolder, ModelFoldersKeepTheAdapterApart) {
  const Transformer model = adapted(tiny_config(), {.rank = 3, .targets = {"o_proj"}});
  save_model(folder_ / "m", model, *byte_tokenizer());
  const LoadedModel loaded = load_model(folder_ / "m");
  EXPECT_EQ(loaded.config, model.config());
  EXPECT_TRUE(outputs(loaded.model).equal(outputs(model)));
  Transformer plain(tiny_config(), 1);
  EXPECT_ERROR(CheckpointError, load_weights(folder_ / "m", plain), "lora_A", "--merge");
  EXPECT_THAT(not_in_hugging_face(model.config()), ::testing::Contains("lora.rank"));
  EXPECT_TRUE(not_in_hugging_face(merge_adapter(model).config()).empty());
}

}  // namespace
}  // namespace fovea::adapter_test
