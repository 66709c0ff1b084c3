// Models of llama2.c: a .bin file of float32 and the tokenizer file beside it.
//
// Legacy files begin with seven int32: width, feed-forward width, layers, heads, key/value heads,
// vocabulary (negative: the head is a matrix of its own) and context. Then float32:
//   embedding
//   of all layers together: attention norms, W_q, W_k, W_v, W_o, feed-forward norms,
//     W_1 (gate), W_2 (down), W_3 (up)
//   last norm
//   two tables of rotations, which are ignored
//   head
// Version 1 has a magic number, the version, the same numbers, a byte for a shared head, and zeros
// up to byte 256. All norms, the embedding, the matrices and the head follow. Numbers are
// little-endian. Rotations turn neighbouring pairs (2t, 2t + 1); theta is 10000, the norms' epsilon
// 1e-5. Source: llama2.c, export.py (format).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/base/files.h"
#include "fovea/checkpoint/mapped_weights.h"
#include "fovea/checkpoint/model_file.h"

namespace fovea {

class Llama2cModel final : public ModelFile {
 public:
  /// Maps the file and checks its sizes against the file's. CheckpointError with what was expected;
  /// UnsupportedError for other versions (2 is quantised).
  explicit Llama2cModel(const std::filesystem::path& path);

  const ModelConfig& config() const override { return config_; }
  /// The tokenizer of the file's folder, from the first of tokenizer.bin, tok<vocabulary>.bin,
  /// tokenizer.model, tok<vocabulary>.model. CheckpointError where there is none, or it has another
  /// number of pieces.
  std::shared_ptr<const Tokenizer> tokenizer() const override;
  std::string chat_template() const override { return ""; }

  const std::filesystem::path& path() const override { return path_; }
  std::vector<std::string> names() const override;
  const StoredTensor* find(std::string_view name) const override;
  at::Tensor tensor(std::string_view name) const override;
  void release_pages() const override { fovea::release_pages(*file_); }

 private:
  struct Entry {
    StoredTensor stored;
    size_t begin = 0;  // byte in the file
  };
  void add(const std::string& name, std::vector<int64_t> shape, size_t& at);

  std::filesystem::path path_;
  std::shared_ptr<const MappedFile> file_;
  ModelConfig config_;
  std::map<std::string, Entry, std::less<>> entries_;
};

/// A tokenizer file of llama2.c: int32 length of the longest piece; for each piece its score
/// (float32), its length (int32) and its bytes, with spaces as spaces. Ids 0, 1 and 2 are the
/// unknown piece and the marks. InputError for a damaged file.
std::shared_ptr<const Tokenizer> llama2c_tokenizer(std::string_view file, const std::string& where);

}  // namespace fovea
