// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/tokenizer.h"

#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/base/files.h"

namespace fovea {

using Json = nlohmann::ordered_json;

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> tokens;
  append(text, tokens);
  return tokens;
}

std::string Tokenizer::decode(std::span<const int32_t> tokens) const {
  std::string bytes;
  for (const int32_t token : tokens) bytes.append(piece(token));
  return repair_utf8(bytes);
}

std::string Tokenizer::fingerprint() const {
  uint64_t hash = fovea::fingerprint(kind());
  for (int64_t id = 0; id < vocab_size(); ++id) {
    hash = fovea::fingerprint(piece(static_cast<int32_t>(id)), hash);
  }
  for (const SpecialToken& special : special_tokens()) {
    hash = fovea::fingerprint(special.text, hash + static_cast<uint64_t>(special.id));
  }
  return hex64(hash);
}

std::string IncrementalDecoder::push(int32_t token) {
  return stream_.push(tokenizer_.piece(token));
}

std::string IncrementalDecoder::finish() { return stream_.finish(); }

std::shared_ptr<const Tokenizer> load_tokenizer(const std::filesystem::path& path) {
  const auto file = std::filesystem::is_directory(path) ? path / "tokenizer.json" : path;
  const Json found = Json::parse(read_file(file), nullptr, false);
  if (found.is_discarded()) {
    fail<InputError>(file.string(),
                     "expected a tokenizer.json; got text that is no JSON; write the file again");
  }
  std::shared_ptr<const Tokenizer> bytes = byte_tokenizer();
  if (nlohmann::json(found) == nlohmann::json::parse(bytes->to_json())) return bytes;
  std::string model = "without a model";
  if (found.is_object() && found.contains("model") && found["model"].is_object()) {
    const Json& type = found["model"].value("type", Json());
    model = type.is_string() ? fmt::format("of model type '{}'", type.get<std::string>()) : model;
  }
  fail<UnsupportedError>(
      file.string(),
      "expected Fovea's byte tokenizer, the only kind read so far; got a tokenizer {}; "
      "use a model that was trained with the byte tokenizer",
      model);
}

}  // namespace fovea
