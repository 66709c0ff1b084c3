// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/weight_files.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "fovea/checkpoint/model_folder.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace fovea::weight_files_test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
constexpr const char* kIndex = "model.safetensors.index.json";

class Shards : public ::testing::Test {
 protected:
  /// Three tensors of 40 bytes in shards of at most 80.
  Shards() {
    for (const char* name : {"a", "b", "c"}) tensors_[name] = at::rand({10});
    write_weights(folder_.path(), tensors_, 80);
  }
  void change_index(const std::function<void(Json&)>& change) {
    Json json = Json::parse(read_file(folder_ / kIndex));
    change(json["weight_map"]);
    write_file(folder_ / kIndex, json.dump());
  }
  testing::TemporaryFolder folder_;
  TensorMap tensors_;
};

TEST_F(Shards, HoldWhatOneFileHolds) {
  EXPECT_TRUE(fs::exists(folder_ / "model-00002-of-00002.safetensors"));
  const Json index = Json::parse(read_file(folder_ / kIndex));
  EXPECT_EQ(index["metadata"]["total_size"], 120);
  const WeightFiles files(folder_.path());
  EXPECT_THAT(files.names(), ::testing::ElementsAre("a", "b", "c"));
  for (const auto& [name, tensor] : tensors_) EXPECT_TRUE(at::equal(files.tensor(name), tensor));
  make_folders(folder_ / "single");
  write_weights(folder_ / "single", tensors_);
  const WeightFiles single(folder_ / "single");
  for (const auto& [name, tensor] : tensors_) EXPECT_TRUE(at::equal(single.tensor(name), tensor));
}

TEST_F(Shards, AModelLoadsFromThem) {
  const Transformer model(testing::tiny_config(), 3);
  save_model(folder_ / "m", model, *byte_tokenizer(), {.shard_bytes = 4000});
  EXPECT_FALSE(fs::exists(folder_ / "m/model.safetensors"));
  const LoadedModel loaded = load_model(folder_ / "m");
  for (const Parameter& p : model.parameters().all())
    EXPECT_TRUE(at::equal(loaded.model.parameters().find(p.name)->value, p.value)) << p.name;
}

TEST_F(Shards, HalfPrecisionWeightsAreTheRoundedOnes) {
  const Transformer model(testing::tiny_config(), 3);
  save_model(folder_ / "m", model, *byte_tokenizer(), {.dtype = at::kBFloat16});
  EXPECT_EQ(Json::parse(read_file(folder_ / "m/config.json"))["torch_dtype"], "bfloat16");
  const LoadedModel loaded = load_model(folder_ / "m");
  for (const Parameter& p : model.parameters().all()) {
    EXPECT_TRUE(at::equal(loaded.model.parameters().find(p.name)->value,
                          p.value.to(at::kBFloat16).to(at::kFloat)));
  }
}

TEST_F(Shards, DamageIsNamed) {
  const auto fails = [&](const std::string& named) {
    EXPECT_ERROR(CheckpointError, WeightFiles(folder_.path()), kIndex, named);
  };
  for (const char* outside :
       {"../x.safetensors", "/etc/x.safetensors", "a\\x.safetensors", "x.bin"}) {
    change_index([&](Json& map) { map["a"] = outside; });
    fails("does not open");
  }
  change_index([](Json& map) { map["a"] = 3; });
  fails("'a'");
  change_index([](Json& map) { map["a"] = "model-00002-of-00002.safetensors"; });
  fails("'a' should stand in");
  change_index([](Json& map) { map["a"] = "model-00001-of-00002.safetensors", map.erase("b"); });
  fails("'b'");
  change_index([](Json& map) { map["b"] = "none.safetensors"; });
  fails("'none.safetensors' is missing");
  write_file(folder_ / kIndex, R"({"weight_map": {"a": "x", "a": "y"}})");
  fails("a");
  write_file(folder_ / kIndex, R"({"weight_map": {}})");
  fails("names no tensor");
  write_file(folder_ / kIndex, "{");
  fails("");
  fs::remove(folder_ / kIndex);
  write_file(folder_ / "pytorch_model.bin", "x");
  EXPECT_ERROR(CheckpointError, WeightFiles(folder_.path()), "safe_serialization");
}

}  // namespace
}  // namespace fovea::weight_files_test
