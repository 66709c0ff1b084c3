// Models in GGUF: weights under the registry's names, config, tokenizer and chat template.
//
// Layouts: for the architecture "llama", llama.cpp's converter reorders the rows of W_q and W_k.
// Each head's rows stand for pairs (2t, 2t + 1) instead of (t, t + d/2); reading undoes it, writing
// does it. Other architectures store rows as Hugging Face does.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/checkpoint/gguf.h"
#include "fovea/checkpoint/mapped_weights.h"
#include "fovea/checkpoint/model_file.h"
#include "fovea/nn/transformer.h"
#include "fovea/text/tokenizer.h"

namespace fovea {

class GgufModel final : public ModelFile {
 public:
  /// Maps the file and reads its config. CheckpointError, and UnsupportedError for what the decoder
  /// does not have, by name.
  explicit GgufModel(const std::filesystem::path& path, Blocks blocks = Blocks::unpacked);

  const ModelConfig& config() const override { return config_; }
  std::shared_ptr<const Tokenizer> tokenizer() const override;
  /// The text under tokenizer.chat_template.
  std::string chat_template() const override;

  const std::filesystem::path& path() const override { return file_.path(); }
  /// Names of the registry; of tensors that it does not know, those of the file.
  std::vector<std::string> names() const override;
  const StoredTensor* find(std::string_view name) const override;
  /// F32, F16 and BF16 as views of the map, unless rows are reordered; quantised ones as float32,
  /// or packed where blocks of Q8_0, Q4_0 and Q4_1 are kept.
  at::Tensor tensor(std::string_view name) const override;
  void release_pages() const override { fovea::release_pages(*file_.map()); }

 private:
  struct Entry {
    StoredTensor stored;
    const GgufTensor* tensor = nullptr;
  };

  GgufFile file_;
  ModelConfig config_;
  bool interleaved_ = false;
  std::map<std::string, Entry, std::less<>> entries_;
};

/// Number formats of the matrices in a GGUF that is written; vectors are float32 in all of them.
/// Rows that are no whole number of blocks are float16 under `q8_0`.
enum class GgufFormat { f32, f16, bf16, q8_0 };
std::span<const std::string_view> enum_names(GgufFormat);

struct GgufOptions {
  GgufFormat format = GgufFormat::f16;
  std::string name;           ///< general.name; "" = none
  std::string chat_template;  ///< "" = none
};

/// Writes a file that other programs of GGUF load. UnsupportedError with what a GGUF cannot say,
/// before anything is written; NumericalError for a weight that the format cannot hold (above
/// 65504 in float16); IoError.
void save_gguf(const std::filesystem::path& path, const Transformer& model,
               const Tokenizer& tokenizer, const GgufOptions& options = {});

}  // namespace fovea
