// A model of two billion weights from a file of 4 GB that is one hole, so that it needs no disk:
// reading it takes the memory of its weights and little more.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "fovea/base/files.h"
#include "fovea/checkpoint/model_folder.h"
#include "fovea/infer/generate.h"
#include "tests/support/temporary_folder.h"

namespace fovea::large_file_test {
namespace {

namespace fs = std::filesystem;

ModelConfig two_billion(int64_t layers) {
  ModelConfig c{.layers = layers, .width = 2560, .heads = 20, .kv_heads = 4, .head_dim = 128};
  c.ffn_width = 6912;
  c.context = 64;
  return c.resolved(32000);
}

/// A line of /proc/self/status, in bytes.
int64_t memory_of_process(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(key + ":")) return std::stoll(line.substr(key.size() + 1)) * 1024;
  return -1;
}

/// The peak counts from now on.
void forget_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

/// Writes model.safetensors with a hole in the place of its tensors, bfloat16; returns their bytes.
int64_t write_hole(const fs::path& path, const ModelConfig& config) {
  const Transformer one(two_billion(1), 0, at::kCPU, FirstNumbers::awaited);
  nlohmann::ordered_json header;
  int64_t end = 0;
  const auto add = [&](const std::string& name, at::IntArrayRef shape) {
    int64_t bytes = 2;
    for (const int64_t n : shape) bytes *= n;
    header[name] = {
        {"dtype", "BF16"}, {"shape", shape.vec()}, {"data_offsets", {end, end + bytes}}};
    end += bytes;
  };
  const std::string first = "model.layers.0.";
  for (const Parameter& parameter : one.parameters().all()) {
    if (!parameter.name.starts_with(first)) {
      add(parameter.name, parameter.value.sizes());
      continue;
    }
    for (int64_t layer = 0; layer < config.layers; ++layer)
      add(fmt::format("model.layers.{}.{}", layer, parameter.name.substr(first.size())),
          parameter.value.sizes());
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string size(8, '\0');
  for (size_t i = 0; i < 8; ++i) size[i] = static_cast<char>(text.size() >> 8 * i & 255);
  write_file(path, size + text);
  fs::resize_file(path, 8 + text.size() + static_cast<uint64_t>(end));
  return end;
}

TEST(LargeFile, AModelOfTwoBillionWeightsTakesTheMemoryOfWhatWasRead) {
  const testing::TemporaryFolder folder;
  const ModelConfig config = two_billion(28);
  write_file(folder / "config.json",
             model_config_json(config, *byte_tokenizer(), at::kBFloat16).dump());
  write_file(folder / "tokenizer.json", byte_tokenizer()->file().content);
  const int64_t bytes = write_hole(folder / "model.safetensors", config);
  EXPECT_GT(bytes, int64_t{4'000'000'000});
  struct stat file {};
  ASSERT_EQ(::stat((folder / "model.safetensors").c_str(), &file), 0);
  EXPECT_LT(file.st_blocks * 512, 1 << 20) << "not a hole";

  const int64_t before = memory_of_process("VmRSS");
  forget_peak();
  LoadedModel loaded = load_model(folder.path(), at::kCPU, {.plain = at::kBFloat16});
  loaded.model.compute().dtype = at::kBFloat16;
  const GenerateResult got = generate_text(loaded.model, *loaded.tokenizer, "a",
                                           {.sampling = {.temperature = 0.0}, .max_tokens = 2});
  const int64_t peak = memory_of_process("VmHWM") - before;
  EXPECT_EQ(got.text, std::string(2, '\0'));  // of weights that are all 0 the first token wins
  EXPECT_GT(peak, bytes) << "not all weights were read";
  EXPECT_LT(static_cast<double>(peak), 1.2 * static_cast<double>(bytes));
}

}  // namespace
}  // namespace fovea::large_file_test
