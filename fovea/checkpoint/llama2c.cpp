// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/llama2c.h"

#include <ATen/ATen.h>

#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "fovea/attention/positions/rope.h"
#include "fovea/base/error.h"
#include "fovea/base/nearest_name.h"
#include "fovea/base/paths.h"
#include "fovea/checkpoint/families.h"
#include "fovea/text/sentencepiece_tokenizer.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;

constexpr int32_t kMark = 0x616b3432;  // "ak42"
constexpr size_t kHeader = 256;        // bytes of the header of version 1
constexpr int64_t kLargestSize = int64_t{1} << 24;
constexpr ReadLimit kLargestTokenizer{"a tokenizer", 256 << 20};

enum Place { width, feed_forward, layers, heads, kv_heads, vocabulary, context, places };
using Sizes = std::array<int32_t, places>;

template <class T>
T number_at(std::span<const std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

ModelConfig config_of(const Sizes& s, bool shared, const std::string& where) {
  constexpr std::array<const char*, places> kNames{
      "width", "feed-forward width", "layers", "heads", "key/value heads", "vocabulary", "context"};
  for (size_t i = 0; i < places; ++i) {
    require<CheckpointError>(s[i] > 0 && s[i] <= kLargestSize, where,
                             "expected a file of llama2.c; its {} would be {}", kNames[i], s[i]);
  }
  require<CheckpointError>(s[width] % s[heads] == 0 && s[heads] % s[kv_heads] == 0, where,
                           "expected a file of llama2.c; {} heads do not divide a width of {} or "
                           "are no multiple of {} key/value heads",
                           s[heads], s[width], s[kv_heads]);
  return config_from_hugging_face({{"model_type", "llama"},
                                   {"hidden_size", s[width]},
                                   {"intermediate_size", s[feed_forward]},
                                   {"num_hidden_layers", s[layers]},
                                   {"num_attention_heads", s[heads]},
                                   {"num_key_value_heads", s[kv_heads]},
                                   {"vocab_size", s[vocabulary]},
                                   {"max_position_embeddings", s[context]},
                                   {"hidden_act", "silu"},
                                   {"rms_norm_eps", 1e-5},
                                   {"rope_theta", 10000.0},
                                   {"tie_word_embeddings", shared}},
                                  where);
}

bool is_turned(std::string_view name) {
  return name.ends_with("q_proj.weight") || name.ends_with("k_proj.weight");
}

}  // namespace

Llama2cModel::Llama2cModel(const fs::path& path)
    : path_(path), file_(std::make_shared<MappedFile>(path)) {
  const std::string where = path.string();
  const std::span<const std::byte> bytes = file_->bytes();
  require<CheckpointError>(bytes.size() >= kHeader, where,
                           "expected a file of llama2.c; got {} bytes", bytes.size());
  const bool legacy = number_at<int32_t>(bytes, 0) != kMark;
  const size_t first = legacy ? 0 : 8;
  if (!legacy) {
    const auto version = number_at<int32_t>(bytes, 4);
    require<UnsupportedError>(version == 1, where,
                              "expected version 1 of llama2.c or a legacy file; got version {}{}",
                              version, version == 2 ? ", which is quantised" : "");
  }
  Sizes s{};
  std::memcpy(s.data(), bytes.data() + first, sizeof s);
  const bool shared = legacy ? s[vocabulary] > 0 : number_at<uint8_t>(bytes, first + sizeof s) != 0;
  if (legacy && s[vocabulary] < 0 && s[vocabulary] >= -kLargestSize) s[vocabulary] = -s[vocabulary];
  config_ = config_of(s, shared, where);

  size_t at = legacy ? first + sizeof s : kHeader;
  const int64_t n = s[width], f = s[feed_forward], head = n / s[heads], kv = head * s[kv_heads];
  const auto each_layer = [&](const char* name, const std::vector<int64_t>& shape) {
    for (int32_t l = 0; l < s[layers]; ++l)
      add(fmt::format("model.layers.{}.{}.weight", l, name), shape, at);
  };
  const auto norms = [&] { each_layer("input_layernorm", {n}); };
  const auto other_norms = [&] { each_layer("post_attention_layernorm", {n}); };
  const auto embedding = [&] { add("model.embed_tokens.weight", {s[vocabulary], n}, at); };
  const auto last_norm = [&] { add("model.norm.weight", {n}, at); };
  const auto attention = [&] {
    each_layer("self_attn.q_proj", {n, n});
    each_layer("self_attn.k_proj", {kv, n});
    each_layer("self_attn.v_proj", {kv, n});
    each_layer("self_attn.o_proj", {n, n});
  };
  const auto gates = [&] {
    each_layer("mlp.gate_proj", {f, n});
    each_layer("mlp.down_proj", {n, f});
    each_layer("mlp.up_proj", {f, n});
  };
  if (legacy) {
    embedding(), norms(), attention(), other_norms(), gates(), last_norm();
    at += static_cast<size_t>(s[context] * head) * sizeof(float);  // two tables of half a head
  } else {
    norms(), other_norms(), last_norm(), embedding(), attention(), gates();
  }
  if (!shared) add("lm_head.weight", {s[vocabulary], n}, at);
  require<CheckpointError>(
      at == bytes.size(), where,
      "expected {} bytes for {} layers of width {} and a vocabulary of {}; got "
      "{}: the file is damaged, cut short, or none of llama2.c",
      at, s[layers], s[width], s[vocabulary], bytes.size());
}

void Llama2cModel::add(const std::string& name, std::vector<int64_t> shape, size_t& at) {
  size_t count = 1;
  for (const int64_t size : shape) count *= static_cast<size_t>(size);
  entries_.emplace(name, Entry{{name, at::kFloat, std::move(shape)}, at});
  at += count * sizeof(float);
}

std::vector<std::string> Llama2cModel::names() const {
  std::vector<std::string> names;
  names.reserve(entries_.size());
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

const StoredTensor* Llama2cModel::find(std::string_view name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second.stored;
}

at::Tensor Llama2cModel::tensor(std::string_view name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end())
    fail<CheckpointError>(path_.string(), "tensor '{}' is missing{}", name,
                          did_you_mean(name, names()));
  const auto& [stored, begin] = found->second;
  // Both headers are a multiple of four bytes long; the closure keeps the map.
  const at::Tensor view = at::from_blob(
      const_cast<std::byte*>(file_->bytes().data()) + begin, stored.shape, [map = file_](void*) {},
      at::TensorOptions(at::kFloat));
  if (!is_turned(name)) return view;
  return convert_rope_layout(view, config_.head_dim, 0, RopeLayout::interleaved,
                             RopeLayout::half_split);
}

std::shared_ptr<const Tokenizer> Llama2cModel::tokenizer() const {
  const fs::path folder = path_.parent_path();
  const int64_t ids = config_.vocab_size;
  const std::array<fs::path, 4> places{
      folder / "tokenizer.bin", folder / fmt::format("tok{}.bin", ids), folder / "tokenizer.model",
      folder / fmt::format("tok{}.model", ids)};
  for (const fs::path& place : places) {
    if (!is_file(place)) continue;
    std::shared_ptr<const Tokenizer> tokenizer;
    try {
      tokenizer = place.extension() == ".bin"
                      ? llama2c_tokenizer(read_file(place, kLargestTokenizer), place.string())
                      : load_tokenizer(place);
    } catch (const InputError& error) {
      throw CheckpointError(error.what());
    }
    require<CheckpointError>(tokenizer->vocab_size() == ids, place.string(),
                             "expected the {} pieces of '{}'; got {}", ids,
                             path_.filename().string(), tokenizer->vocab_size());
    return tokenizer;
  }
  fail<CheckpointError>(path_.string(),
                        "expected a tokenizer beside it: {}, {}, {} or {}; there is none",
                        places[0].filename().string(), places[1].filename().string(),
                        places[2].filename().string(), places[3].filename().string());
}

std::shared_ptr<const Tokenizer> llama2c_tokenizer(std::string_view file,
                                                   const std::string& where) {
  using Type = SentencePieceModel::Type;
  const auto bytes = std::as_bytes(std::span(file));
  SentencePieceModel model{.algorithm = SentencePieceModel::Algorithm::bpe,
                           .remove_extra_whitespaces = false};
  for (size_t at = 4; at < bytes.size();) {
    require<InputError>(bytes.size() - at >= 8, where,
                        "expected score and length of piece {} at byte {}; the file ends",
                        model.pieces.size(), at);
    const auto score = number_at<float>(bytes, at);
    const auto length = number_at<int32_t>(bytes, at + 4);
    at += 8;
    require<InputError>(length >= 0 && static_cast<size_t>(length) <= bytes.size() - at, where,
                        "piece {} at byte {} would have {} bytes; {} are left", model.pieces.size(),
                        at, length, bytes.size() - at);
    const std::string_view text = file.substr(at, static_cast<size_t>(length));
    at += text.size();
    SentencePieceModel::Piece piece{.text = {}, .score = score};
    for (const char c : text) piece.text += c == ' ' ? "\xE2\x96\x81" : std::string(1, c);
    const size_t id = model.pieces.size();
    const bool is_byte = text.size() == 6 && text.starts_with("<0x") && text.ends_with('>');
    if (id < 3) {
      // llama2.c puts line ends around the marks.
      constexpr std::array<const char*, 3> kMarks{"<unk>", "<s>", "</s>"};
      piece.text = kMarks[id];
      piece.type = id == 0 ? Type::unknown : Type::control;
    } else if (is_byte) {
      piece.type = Type::byte;
      model.byte_fallback = true;
    }
    model.pieces.push_back(std::move(piece));
  }
  require<InputError>(model.pieces.size() > 3, where,
                      "expected a tokenizer of llama2.c; got {} pieces", model.pieces.size());
  return sentencepiece_tokenizer(model, {.eos = "</s>", .pad = "", .adds_bos = true}, where);
}

}  // namespace fovea
