// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/gguf_model.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/checkpoint/adapter.h"
#include "fovea/checkpoint/changed_model.h"
#include "fovea/checkpoint/gguf_family.h"
#include "fovea/checkpoint/gguf_vocabulary.h"
#include "fovea/checkpoint/model_file.h"
#include "fovea/checkpoint/model_folder.h"
#include "fovea/checkpoint/run_folder.h"
#include "fovea/config/reader.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace fovea::gguf_model_test {
namespace {

namespace fs = std::filesystem;
using testing::tiny_config;

class GgufModels : public ::testing::Test {
 protected:
  fs::path save(const Transformer& model,
                const GgufOptions& options = {.format = GgufFormat::f32}) {
    save_gguf(path_, model, *byte_tokenizer(), options);
    return path_;
  }
  /// A whole file whose metadata are then changed.
  fs::path save_changed(const std::function<void(GgufMetadata&)>& change,
                        const std::vector<GgufOutput>& more = {}, const std::string& without = "") {
    save(Transformer(tiny_config(), 3));
    const GgufFile file(path_);
    GgufMetadata metadata = file.metadata();
    change(metadata);
    std::vector<GgufOutput> tensors = more;
    for (const GgufTensor& tensor : file.tensors()) {
      if (tensor.name == without) continue;
      tensors.push_back({tensor.name, tensor.type, tensor.shape, [&file, &tensor] {
                           const auto bytes = file.bytes(tensor);
                           return std::vector<std::byte>(bytes.begin(), bytes.end());
                         }});
    }
    const fs::path changed = folder_ / "changed.gguf";
    write_gguf(changed, metadata, tensors);
    return changed;
  }
  static std::vector<std::byte> bytes_of(const std::vector<float>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    return {bytes.begin(), bytes.end()};
  }
  testing::TemporaryFolder folder_;
  fs::path path_ = folder_ / "m.gguf";
};

/// The configs that a GGUF can say, with the architecture of each.
std::vector<std::pair<std::string, ModelConfig>> plain_configs() {
  using Kind = RopeScaling::Kind;
  std::vector<std::pair<std::string, ModelConfig>> configs;
  const auto add = [&](const char* architecture, const std::function<void(ModelConfig&)>& change) {
    ModelConfig config = tiny_config();
    change(config);
    configs.emplace_back(architecture, config.resolved(config.vocab_size));
  };
  add("llama", [](ModelConfig&) {});
  add("llama", [](ModelConfig& c) { c.tied = false, c.head_dim = 16, c.norm_eps = 2e-6; });
  add("llama", [](ModelConfig& c) { c.biases = {.qkv = true, .output = true}; });
  add("llama", [](ModelConfig& c) { c.biases.feed_forward = true; });
  add("llama", [](ModelConfig& c) { c.rope.scaling = {.kind = Kind::linear, .factor = 4.0}; });
  add("llama", [](ModelConfig& c) {
    c.rope.scaling = {.kind = Kind::yarn, .factor = 2.0, .original_context = 8, .beta_fast = 16.0};
  });
  add("llama", [](ModelConfig& c) {
    c.rope.theta = 500000.0;
    c.rope.scaling = {.kind = Kind::llama3, .factor = 32.0, .original_context = 8192};
  });
  add("qwen2", [](ModelConfig& c) { c.biases.qkv = true; });
  add("qwen3", [](ModelConfig& c) { c.qk_norm = QkNorm::head_rms, c.head_dim = 16; });
  return configs;
}

TEST_F(GgufModels, EveryPlainModelComesBackBitForBit) {
  for (const auto& [architecture, config] : plain_configs()) {
    const Transformer model(config, 3);
    const LoadedModel loaded =
        load_model(save(model, {.format = GgufFormat::f32, .chat_template = "{{ messages }}"}));
    EXPECT_EQ(GgufFile(path_).metadata().at("general.architecture").texts[0], architecture);
    EXPECT_EQ(loaded.config, config) << fields_to_yaml(loaded.config);
    EXPECT_EQ(load_model_config(path_), config);
    EXPECT_EQ(loaded.chat_template, "{{ messages }}");
    ASSERT_EQ(loaded.model.parameters().all().size(), model.parameters().all().size());
    for (const Parameter& p : model.parameters().all())
      EXPECT_TRUE(at::equal(loaded.model.parameters().find(p.name)->value, p.value)) << p.name;
    fs::remove(path_);
  }
}

TEST_F(GgufModels, RowsOfQueriesAndKeysStandInPairsInLlamaAlone) {
  ModelConfig qwen = tiny_config();
  qwen.biases.qkv = true;
  for (const bool pairs : {true, false}) {
    const Transformer model(pairs ? tiny_config() : qwen, 3);
    const GgufFile file(save(model));
    const GgufTensor* q = file.find("blk.1.attn_q.weight");
    ASSERT_NE(q, nullptr);
    std::vector<float> values(16 * 16);
    dequantise(q->type, file.bytes(*q), values);
    const at::Tensor stored = at::from_blob(values.data(), {16, 16}),
                     ours =
                         model.parameters().find("model.layers.1.self_attn.q_proj.weight")->value;
    // Heads of 8: component 4 turns with component 0, so its row stands behind that one's.
    EXPECT_EQ(at::equal(stored[1], ours[4]), pairs);
    EXPECT_EQ(at::equal(stored[8 + 2], ours[8 + 1]), pairs);
    EXPECT_EQ(at::equal(stored, ours), !pairs);
    fs::remove(path_);
  }
}

TEST_F(GgufModels, OtherFormatsHoldTheRoundedWeights) {
  ModelConfig config = tiny_config();
  config.width = 32;  // rows of one block; those of the embedding and of 16 are none
  config.head_dim = 8;
  const Transformer model(config.resolved(259), 3);
  const at::Tensor up = model.parameters().find("model.layers.0.mlp.up_proj.weight")->value;
  const at::Tensor down = model.parameters().find("model.layers.0.mlp.down_proj.weight")->value,
                   out = model.parameters().find("model.layers.0.self_attn.o_proj.weight")->value;
  for (const auto& [format, dtype] :
       {std::pair(GgufFormat::f16, at::kHalf), std::pair(GgufFormat::bf16, at::kBFloat16)}) {
    save(model, {.format = format});
    const LoadedModel loaded = load_model(path_);
    EXPECT_TRUE(
        at::equal(loaded.model.parameters().find("model.layers.0.mlp.up_proj.weight")->value,
                  up.to(dtype).to(at::kFloat)));
    EXPECT_EQ(GgufModel(path_).find("model.norm.weight")->dtype, at::kFloat);
    EXPECT_EQ(GgufModel(path_).tensor("model.layers.0.mlp.up_proj.weight").scalar_type(), dtype);
  }
  save(model, {.format = GgufFormat::q8_0});
  const GgufFile file(path_);
  EXPECT_EQ(file.find("blk.0.ffn_up.weight")->type, GgmlType::q8_0);
  EXPECT_EQ(file.find("blk.0.attn_output.weight")->type, GgmlType::f16);
  std::vector<std::byte> blocks(static_cast<size_t>(up.numel() / 32 * 34));
  quantise_q8_0({up.const_data_ptr<float>(), static_cast<size_t>(up.numel())}, blocks);
  std::vector<float> expected(static_cast<size_t>(up.numel()));
  dequantise(GgmlType::q8_0, blocks, expected);
  const LoadedModel loaded = load_model(path_);
  EXPECT_TRUE(at::equal(loaded.model.parameters().find("model.layers.0.mlp.up_proj.weight")->value,
                        at::from_blob(expected.data(), up.sizes())));
  EXPECT_EQ(file.metadata().at("general.file_type"), GgufValue::of_integer(7));
}

TEST_F(GgufModels, BlocksStayAsTheyAreWhereAskedFor) {
  ModelConfig config = tiny_config();
  config.width = 64, config.head_dim = 32, config.ffn_width = 96;
  const Transformer model(config.resolved(259), 3);
  save(model, {.format = GgufFormat::q8_0});
  const LoadedModel read = load_model(path_),
                    kept = load_model(path_, at::kCPU, {.as_stored = true});
  int packed = 0;
  for (const Parameter& p : kept.model.parameters().all()) {
    const at::Tensor& truth = read.model.parameters().find(p.name)->value;
    EXPECT_TRUE(at::equal(unpacked(p.value, at::kFloat), truth.detach())) << p.name;
    packed += is_packed(p.value) ? 1 : 0;
    EXPECT_FALSE(p.trainable);
  }
  EXPECT_EQ(packed, (config.tied ? 1 : 2) + 7 * config.layers);
  EXPECT_EQ(kept.model.parameters().count(), model.parameters().count());
  // Another format than the file's is made of its numbers.
  const LoadedModel smaller =
      load_model(path_, at::kCPU, {.packed = kernels::WeightFormat::q4_0, .as_stored = true});
  EXPECT_EQ(smaller.model.parameters().find("model.embed_tokens.weight")->value.size(2), 18);
}

TEST_F(GgufModels, AnAdapterLeavesBlocksThatItDoesNotChange) {
  ModelConfig config = tiny_config();
  config.width = 64, config.head_dim = 32, config.ffn_width = 96;
  save(Transformer(config.resolved(259), 3), {.format = GgufFormat::q8_0});
  const auto adapted = [&](const ModelConfig& changed, const char* name) {
    Adapter adapter = adapter_of(Transformer(changed.resolved(259), 3));
    adapter.base_name = "some/base";
    const fs::path folder = path_.parent_path() / name;
    write_adapter(folder, changed.resolved(259), adapter);
    return load_changed(path_, {.adapters = {folder.string()}}, at::kCPU, {.as_stored = true});
  };
  const auto packed = [](const LoadedModel& loaded) {
    return std::ranges::count_if(loaded.model.parameters().all(),
                                 [](const Parameter& p) { return is_packed(p.value); });
  };
  const LoadedModel read = load_model(path_);
  ModelConfig changed = config;
  changed.attention.spec.temperature.kind = TemperatureSpec::Kind::learned;
  const LoadedModel focal = adapted(changed, "focal");
  EXPECT_EQ(packed(focal), (config.tied ? 1 : 2) + 7 * config.layers);
  for (const Parameter& p : read.model.parameters().all()) {
    const at::Tensor& held = focal.model.parameters().find(p.name)->value;
    EXPECT_TRUE(at::equal(unpacked(held, at::kFloat), p.value.detach())) << p.name;
  }
  changed = config;
  changed.lora = {.rank = 2};
  EXPECT_EQ(packed(adapted(changed, "lora")), 0);
}

TEST_F(GgufModels, PlainNumbersAreReadWithoutACopyAndOutliveTheFile) {
  const Transformer model(tiny_config(), 3);
  save(model);
  at::Tensor first, second;
  {
    const GgufModel file(path_);
    first = file.tensor("model.embed_tokens.weight");
    second = file.tensor("model.embed_tokens.weight");
    EXPECT_ERROR(CheckpointError, file.tensor("model.nrom.weight"), "model.norm.weight");
  }
  EXPECT_EQ(first.const_data_ptr(), second.const_data_ptr());
  EXPECT_TRUE(at::equal(first, model.parameters().find("model.embed_tokens.weight")->value));
}

TEST_F(GgufModels, TheOnlyFileOfAFolderIsMeant) {
  save(Transformer(tiny_config(), 3));
  EXPECT_EQ(load_model(folder_.path()).config, tiny_config());
  EXPECT_EQ(resolve_model_folder(folder_.path()), path_);
  EXPECT_EQ(resolve_model_folder(path_), path_);
  fs::copy(path_, folder_ / "second.gguf");
  EXPECT_ERROR(CheckpointError, load_model(folder_.path()), "config.json");
  EXPECT_ERROR(CheckpointError, resolve_model_folder(folder_.path()), "one .gguf file");
}

TEST_F(GgufModels, ItsTokenizerServesTheRecipeThatNamesIt) {
  save(Transformer(tiny_config(), 3));
  const std::string fingerprint = open_model_file(path_)->tokenizer()->fingerprint();
  EXPECT_EQ(open_named_tokenizer(folder_.path().string())->fingerprint(), fingerprint);
  EXPECT_EQ(open_named_tokenizer(path_.string())->fingerprint(), fingerprint);
  EXPECT_EQ(open_named_tokenizer("bytes")->kind(), "bytes");
  // A tokenizer file beside it is what was meant.
  write_file(folder_ / "tokenizer.json", "{}");
  EXPECT_ERROR(InputError, open_named_tokenizer(folder_.path().string()), "tokenizer.json");
  EXPECT_ERROR(InputError, open_named_tokenizer((folder_ / "none").string()), "none");
}

TEST_F(GgufModels, ATrainingBeginsFromOne) {
  const Transformer model(tiny_config(), 3);
  Transformer other(tiny_config(), 4);
  EXPECT_THAT(load_weights(save(model), other), ::testing::IsEmpty());
  for (const Parameter& p : model.parameters().all())
    EXPECT_TRUE(at::equal(other.parameters().find(p.name)->value, p.value)) << p.name;
}

TEST_F(GgufModels, WhatAGgufCannotSayIsRefusedByName) {
  const auto refused = [&](const char* key, const std::function<void(ModelConfig&)>& change) {
    ModelConfig config = tiny_config();
    change(config);
    const Transformer model(config.resolved(259), 1);
    EXPECT_ERROR(UnsupportedError, save(model), key);
    EXPECT_FALSE(fs::exists(path_));
  };
  refused("attention.temperature.value",
          [](ModelConfig& c) { c.attention.spec.temperature.value = 0.5; });
  refused("mistral", [](ModelConfig& c) { c.attention.spec.mask.window = 4; });
  refused("layer_types", [](ModelConfig& c) {
    c.qk_norm = QkNorm::head_rms;
    c.attention.spec.mask.window = 4;
  });
  refused("olmo2", [](ModelConfig& c) {
    c.block = BlockLayout::output;
    c.qk_norm = QkNorm::full_rms;
  });
  refused("rope_scaling", [](ModelConfig& c) {
    c.rope.scaling = {.kind = RopeScaling::Kind::dynamic_ntk, .factor = 2, .original_context = 8};
  });
  refused("truncate", [](ModelConfig& c) {
    c.rope.scaling = {
        .kind = RopeScaling::Kind::yarn, .factor = 2, .original_context = 8, .truncate = false};
  });
  refused("rope_freqs", [](ModelConfig& c) {
    c.rope.scaling = {.kind = RopeScaling::Kind::llama3,
                      .factor = 4,
                      .original_context = 8192,
                      .high_frequency = 2};
    c.head_dim = 64;
  });
}

TEST_F(GgufModels, AWeightThatFloat16CannotHoldIsNotWritten) {
  const Transformer model(tiny_config(), 3);
  model.parameters().find("model.embed_tokens.weight")->value.detach()[3][5].fill_(70000.0);
  EXPECT_ERROR(NumericalError, save(model, {.format = GgufFormat::f16}), "embed_tokens", "70000");
  EXPECT_FALSE(fs::exists(path_));
  EXPECT_NO_THROW(save(model, {.format = GgufFormat::bf16}));
}

TEST_F(GgufModels, MetadataThatDoNotFitAreRefusedByName) {
  const auto set = [&](const std::string& key, const GgufValue& value) {
    return save_changed([&](GgufMetadata& m) { m[key] = value; });
  };
  const auto number = [](int64_t value) { return GgufValue::of_integer(value); };
  const auto text = [](const char* value) { return GgufValue::of_text(value); };
  const auto load = [](const fs::path& path) { return load_model(path); };
  EXPECT_NO_THROW(load(set("llama.expert_count", number(0))));
  EXPECT_NO_THROW(load(set("general.languages", GgufValue::of_texts({"en"}))));
  EXPECT_NO_THROW(load(set("llama.attention.head_count_kv", GgufValue::of_integers({1, 1}))));
  EXPECT_ERROR(UnsupportedError, load(set("general.architecture", text("mamba"))), "llama, qwen2",
               "mamba");
  EXPECT_ERROR(UnsupportedError, load(set("general.type", text("adapter"))), "adapter");
  EXPECT_ERROR(UnsupportedError, load(set("split.count", number(3))), "parts");
  EXPECT_ERROR(UnsupportedError, load(set("llama.expert_count", number(8))), "expert_count", "8");
  EXPECT_ERROR(UnsupportedError, load(set("llama.logit_scale", GgufValue::of_real(2))),
               "llama.logit_scale");
  EXPECT_ERROR(UnsupportedError, load(set("llama.rope.dimension_count", number(4))),
               "rope.dimension_count");
  EXPECT_ERROR(UnsupportedError, load(set("llama.rope.scaling.type", text("longrope"))),
               "longrope");
  EXPECT_ERROR(UnsupportedError,
               load(set("llama.feed_forward_length", GgufValue::of_integers({32, 64}))),
               "differs between layers");
  EXPECT_ERROR(CheckpointError, load(set("llama.block_count", text("two"))), "whole number");
  EXPECT_ERROR(CheckpointError, load(set("llama.block_count", number(0))), "layers");
  EXPECT_ERROR(CheckpointError, load(set("llama.attention.head_count", number(0))), "head_count");
  EXPECT_ERROR(CheckpointError, load(set("llama.attention.layer_norm_rms_epsilon", number(1))),
               "floating-point");
  EXPECT_ERROR(CheckpointError, load(set("llama.feed_forward_length", number(64))), "wrong shapes");
  EXPECT_ERROR(CheckpointError, load(set("llama.block_count", number(3))), "missing tensors",
               "model.layers.2");
  EXPECT_ERROR(CheckpointError, load(set("llama.block_count", number(1))), "unexpected tensors",
               "model.layers.1");
  for (const char* key : {"general.architecture", "llama.block_count", "llama.embedding_length",
                          "tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.merges"})
    EXPECT_ERROR(CheckpointError, load(save_changed([&](GgufMetadata& m) { m.erase(key); })), key);
}

TEST_F(GgufModels, TensorsThatDoNotFitAreRefusedByName) {
  const auto nothing = [](GgufMetadata&) {};
  const auto some = [](size_t count) {
    return [count] { return bytes_of(std::vector<float>(count, 2.0F)); };
  };
  EXPECT_ERROR(CheckpointError, load_model(save_changed(nothing, {}, "token_embd.weight")),
               "token_embd.weight");
  EXPECT_ERROR(CheckpointError, load_model(save_changed(nothing, {}, "blk.1.ffn_up.weight")),
               "model.layers.1.mlp.up_proj.weight");
  EXPECT_ERROR(CheckpointError,
               load_model(save_changed(nothing, {{"blk.0.extra", GgmlType::f32, {3}, some(3)}})),
               "unexpected", "blk.0.extra");
  EXPECT_ERROR(
      UnsupportedError,
      load_model(save_changed(nothing, {{"rope_freqs.weight", GgmlType::f32, {4}, some(4)}})),
      "rope_freqs.weight", "LLaMA-3");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_ERROR(NumericalError,
               load_model(save_changed(nothing,
                                       {{"output_norm.weight",
                                         GgmlType::f32,
                                         {16},
                                         [&] { return bytes_of(std::vector<float>(16, nan)); }}},
                                       "output_norm.weight")),
               "model.norm.weight", "NaN");
}

}  // namespace
}  // namespace fovea::gguf_model_test
