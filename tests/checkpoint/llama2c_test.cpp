// Models of llama2.c (fovea/checkpoint/llama2c.h), written here as its export.py lays them out.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/llama2c.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>

#include "fovea/base/files.h"
#include "fovea/checkpoint/gguf_model.h"
#include "fovea/checkpoint/model_folder.h"
#include "fovea/checkpoint/run_folder.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace fovea::llama2c_test {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kVocabulary = 262, kContext = 12;

ModelConfig config(bool tied) {
  ModelConfig c;
  c.layers = 2, c.width = 32, c.heads = 4, c.kv_heads = 2, c.head_dim = 8, c.ffn_width = 44;
  c.context = kContext;
  c.norm_eps = 1e-5;
  c.tied = tied;
  return c.resolved(kVocabulary);
}

template <class T>
void put(std::string& file, T value) {
  file.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// 3 marks, 256 bytes, "a", "b" and "a b".
std::string tokenizer_file() {
  std::string file;
  put(file, 6);
  const auto piece = [&](float score, const std::string& text) {
    put(file, score);
    put(file, static_cast<int32_t>(text.size()));
    file += text;
  };
  for (const char* mark : {"<unk>", "\n<s>\n", "\n</s>\n"}) piece(0, mark);
  for (int byte = 0; byte < 256; ++byte) piece(0, fmt::format("<0x{:02X}>", byte));
  piece(-1, " ");
  piece(-2, "a");
  piece(-3, " a");
  return file;
}

class Llama2c : public ::testing::Test {
 protected:
  /// The layout of the header's comment; rows of queries and keys in neighbouring pairs.
  std::string file_of(const Transformer& model, bool legacy) {
    const ModelConfig& c = model.config();
    std::string file;
    if (!legacy) put(file, int32_t{0x616b3432}), put(file, int32_t{1});
    for (const int64_t size : {c.width, c.ffn_width, c.layers, c.heads, c.kv_heads,
                               legacy && !c.tied ? -kVocabulary : kVocabulary, c.context})
      put(file, static_cast<int32_t>(size));
    if (!legacy) {
      put(file, static_cast<uint8_t>(c.tied));
      file.resize(256);
    }
    const auto tensor = [&](const std::string& name) {
      at::Tensor value = model.parameters().find(name + ".weight")->value.detach();
      if (name.ends_with("q_proj") || name.ends_with("k_proj"))
        value = value.view({-1, 2, c.head_dim / 2, c.width}).transpose(1, 2);
      value = value.contiguous();
      file.append(static_cast<const char*>(value.const_data_ptr()), value.nbytes());
    };
    const auto layers = [&](const char* name) {
      for (int64_t l = 0; l < c.layers; ++l) tensor(fmt::format("model.layers.{}.{}", l, name));
    };
    const auto matrices = [&] {
      for (const char* name :
           {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"})
        layers(name);
    };
    const auto gates = [&] {
      for (const char* name : {"mlp.gate_proj", "mlp.down_proj", "mlp.up_proj"}) layers(name);
    };
    if (legacy) {
      tensor("model.embed_tokens");
      layers("input_layernorm");
      matrices();
      layers("post_attention_layernorm");
      gates();
      tensor("model.norm");
      file.append(static_cast<size_t>(c.context * c.head_dim) * 4, '\x11');
    } else {
      layers("input_layernorm");
      layers("post_attention_layernorm");
      tensor("model.norm");
      tensor("model.embed_tokens");
      matrices();
      gates();
    }
    if (!c.tied) tensor("lm_head");
    return file;
  }
  fs::path save(const std::string& file) {
    write_file(path_, file);
    write_file(folder_ / "tokenizer.bin", tokenizer_file());
    return path_;
  }

  testing::TemporaryFolder folder_;
  fs::path path_ = folder_ / "model.bin";
};

TEST_F(Llama2c, FilesOfBothVersionsAreRead) {
  for (const bool tied : {true, false}) {
    const Transformer model(config(tied), 3);
    for (const bool legacy : {true, false}) {
      const LoadedModel loaded = load_model(save(file_of(model, legacy)));
      EXPECT_EQ(loaded.config, config(tied));
      EXPECT_EQ(resolve_model_folder(path_), path_);
      for (const Parameter& p : model.parameters().all())
        EXPECT_TRUE(at::equal(loaded.model.parameters().find(p.name)->value, p.value)) << p.name;
    }
  }
}

TEST_F(Llama2c, TheTokenizerIsThatOfItsFolder) {
  const LoadedModel loaded = load_model(save(file_of(Transformer(config(true), 3), true)));
  const Tokenizer& tokenizer = *loaded.tokenizer;
  EXPECT_EQ(tokenizer.encode("a"), (std::vector<int32_t>{261}));  // a space stands before a text
  EXPECT_EQ(tokenizer.encode("aa"), (std::vector<int32_t>{261, 260}));
  EXPECT_EQ(tokenizer.encode("<s>"), (std::vector<int32_t>{259, 3 + '<', 3 + 's', 3 + '>'}))
      << "a text forged a mark";
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a Zoë a")), "a Zoë a");
  EXPECT_EQ(tokenizer.bos(), 1);
  EXPECT_EQ(tokenizer.eos(), 2);
  fs::rename(folder_ / "tokenizer.bin", folder_ / "tok262.bin");
  EXPECT_EQ(load_model(path_).tokenizer->fingerprint(), tokenizer.fingerprint());
  fs::remove(folder_ / "tok262.bin");
  EXPECT_ERROR(CheckpointError, load_model(path_), "tokenizer.bin, tok262.bin");
}

TEST_F(Llama2c, BecomesAGgufWithTheSameNumbers) {
  const LoadedModel loaded = load_model(save(file_of(Transformer(config(true), 3), true)));
  const fs::path gguf = folder_ / "m.gguf";
  save_gguf(gguf, loaded.model, *loaded.tokenizer, {.format = GgufFormat::f32});
  const LoadedModel again = load_model(gguf);
  EXPECT_EQ(again.config, loaded.config);
  EXPECT_EQ(again.tokenizer->encode("a Zoë aa"), loaded.tokenizer->encode("a Zoë aa"));
}

TEST_F(Llama2c, DamagedFilesAreRefused) {
  const std::string file = file_of(Transformer(config(true), 3), true);
  for (const size_t size : {0u, 27u, 255u, 1000u})
    EXPECT_ERROR(CheckpointError, load_model(save(file.substr(0, size))), "model.bin");
  EXPECT_ERROR(CheckpointError, load_model(save(file + "x")), "the file is damaged");
  const auto changed = [&](size_t place, int32_t value) {
    std::string other = file;
    std::memcpy(other.data() + 4 * place, &value, 4);
    return save(other);
  };
  EXPECT_ERROR(CheckpointError, load_model(changed(0, -5)), "its width would be -5");
  EXPECT_ERROR(CheckpointError, load_model(changed(3, 5)), "5 heads");
  EXPECT_ERROR(CheckpointError, load_model(changed(2, 3)), "bytes for 3 layers");
  EXPECT_ERROR(CheckpointError, load_model(changed(2, 1 << 24)), "16777216");
  EXPECT_ERROR(CheckpointError, load_model(changed(5, INT32_MIN)), "vocabulary");
  std::string second = file_of(Transformer(config(true), 3), false);
  second[4] = 2;
  EXPECT_ERROR(UnsupportedError, load_model(save(second)), "version 2", "quantised");
}

TEST_F(Llama2c, DamagedTokenizersAreRefused) {
  const std::string file = file_of(Transformer(config(true), 3), true),
                    tokenizer = tokenizer_file();
  save(file);
  const auto with = [&](const std::string& content) {
    write_file(folder_ / "tokenizer.bin", content);
    return load_model(path_);
  };
  EXPECT_ERROR(CheckpointError, with(""), "got 0 pieces");
  EXPECT_ERROR(CheckpointError, with(tokenizer.substr(0, 15)), "piece 0");
  EXPECT_ERROR(CheckpointError, with(tokenizer.substr(0, tokenizer.size() - 1)), "1 are left");
  std::string endless = tokenizer;
  endless[4 + 4 + 3] = '\x7F';
  EXPECT_ERROR(CheckpointError, with(endless), "bytes");
  const size_t last = 8 + 2;  // " a" is the last piece
  EXPECT_ERROR(CheckpointError, with(tokenizer.substr(0, tokenizer.size() - last)), "262 pieces",
               "got 261");
}

}  // namespace
}  // namespace fovea::llama2c_test
