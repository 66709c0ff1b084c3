// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/tokenizer.h"

#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/text/json_tokenizer.h"

namespace fovea {

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> tokens;
  append(text, tokens);
  return tokens;
}

std::string Tokenizer::decode(std::span<const int32_t> tokens) const {
  std::string bytes;
  for (const int32_t token : tokens) bytes.append(piece(token));
  if (bytes.starts_with(text_prefix())) bytes.erase(0, text_prefix().size());
  return repair_utf8(bytes);
}

std::string Tokenizer::fingerprint() const {
  uint64_t hash = fovea::fingerprint(kind()) + rules();
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

namespace {

constexpr ReadLimit kLargestTokenizer{"a tokenizer", 512 << 20};

/// The text of a mark: "</s>" or {"content": "</s>", ...}.
std::string mark_text(const nlohmann::json& config, const char* key) {
  const auto found = config.is_object() ? config.find(key) : config.end();
  if (!config.is_object() || found == config.end()) return "";
  const nlohmann::json& text = found->is_object() ? found->value("content", *found) : *found;
  return text.is_string() ? text.get<std::string>() : "";
}

}  // namespace

std::shared_ptr<const Tokenizer> load_tokenizer(const std::filesystem::path& path) {
  const auto file = std::filesystem::is_directory(path) ? path / "tokenizer.json" : path;
  std::string text = read_file(file, kLargestTokenizer);
  std::shared_ptr<const Tokenizer> bytes = byte_tokenizer();
  if (text == bytes->to_json()) return bytes;
  // The same, laid out by another program; a vocabulary of bytes is small.
  if (text.size() < 2 * bytes->to_json().size()) {
    const auto found = nlohmann::json::parse(text, nullptr, false);
    if (found == nlohmann::json::parse(bytes->to_json())) return bytes;
  }
  MarkNames marks;
  const auto beside = file.parent_path() / "tokenizer_config.json";
  if (std::filesystem::is_regular_file(beside)) {
    const auto config = nlohmann::json::parse(read_file(beside, kLargestTokenizer), nullptr, false);
    marks = {.eos = mark_text(config, "eos_token"), .pad = mark_text(config, "pad_token")};
  }
  return json_tokenizer(std::move(text), marks, file.string());
}

std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& name) {
  return name == "bytes" ? byte_tokenizer() : load_tokenizer(name);
}

}  // namespace fovea
