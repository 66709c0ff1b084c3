// Model families of GGUF: converts metadata and tensor names to Hugging Face's, and back.
//
// The one reader of families is config_from_hugging_face(): metadata become the keys of a
// config.json. A known key of an architecture may be missing; an unknown one is refused, because an
// ignored setting changes every number.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/checkpoint/gguf.h"
#include "fovea/nn/model_config.h"

namespace fovea {

/// An architecture whose arithmetic the decoder has.
struct GgufFamily {
  std::string_view architecture;  ///< "llama"
  std::string_view model_type;    ///< of Hugging Face
  /// Rows of W_q and W_k are stored for rotated pairs (2t, 2t + 1); ours are (t, t + d/2).
  bool interleaved = false;
};

/// The family of `general.architecture`. UnsupportedError with the names that are read, also for a
/// file that is a part of a model or no model; CheckpointError where the key is missing.
const GgufFamily& gguf_family(const GgufMetadata& metadata, const std::string& where);

/// Facts about the config that only the tensors of a file tell.
struct GgufTensorFacts {
  int64_t vocabulary = 0;  ///< rows of the embedding
  bool tied = true;        ///< there is no output.weight
  bool attention_bias = false, feed_forward_bias = false;
  std::vector<float> rope_factors;  ///< of rope_freqs.weight: divisors of the frequencies
};

/// The keys of a config.json. CheckpointError for missing keys and wrong types, UnsupportedError
/// for settings that the decoder does not have, by name.
nlohmann::ordered_json hugging_face_config(const GgufMetadata& metadata,
                                           const GgufTensorFacts& facts, const std::string& where);

/// The metadata of a resolved config: "general.architecture" and the keys of the architecture.
/// UnsupportedError with the keys that GGUF cannot say.
GgufMetadata gguf_config(const ModelConfig& config);
/// The numbers of rope_freqs.weight, [d_r / 2]; empty where there is none.
std::vector<float> gguf_rope_factors(const ModelConfig& config);

/// "blk.0.attn_q.weight" is "model.layers.0.self_attn.q_proj.weight" in the registry. A name that
/// the map does not have comes back unchanged.
std::string registry_name(std::string_view gguf_name);
/// The inverse.
std::string gguf_name(std::string_view registry_name);
/// Whether `registry_name` is W_q, W_k or a bias of them.
bool has_rotated_rows(std::string_view registry_name);

}  // namespace fovea
