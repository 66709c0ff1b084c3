// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/model_file.h"

#include "fovea/base/paths.h"
#include "fovea/checkpoint/gguf_model.h"
#include "fovea/checkpoint/llama2c.h"

namespace fovea {

namespace fs = std::filesystem;

std::optional<fs::path> find_model_file(const fs::path& path) {
  const auto is = [](const fs::path& p, const char* extension) {
    return p.extension() == extension && is_file(p);
  };
  if (is(path, ".gguf") || is(path, ".bin")) return path;
  if (!is_folder(path) || path_exists(path / "config.json")) return std::nullopt;
  std::optional<fs::path> only;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path, error)) {
    if (!is(entry.path(), ".gguf")) continue;
    if (only) return std::nullopt;
    only = entry.path();
  }
  return only;
}

std::unique_ptr<const ModelFile> open_model_file(const fs::path& path, ModelFile::Blocks blocks) {
  if (path.extension() == ".bin") return std::make_unique<Llama2cModel>(path);
  return std::make_unique<GgufModel>(path, blocks);
}

std::shared_ptr<const Tokenizer> open_named_tokenizer(const std::string& name) {
  const bool has_tokenizer_file = is_folder(name) && path_exists(find_tokenizer_file(name));
  if (!has_tokenizer_file)
    if (const auto file = find_model_file(name)) return open_model_file(*file)->tokenizer();
  return open_tokenizer(name);
}

}  // namespace fovea
