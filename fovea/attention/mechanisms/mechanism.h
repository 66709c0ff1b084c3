// Mechanism: everything that attention/ needs to know about one setting of AttentionSpec, as one
// value. Spec, checks, stages, tensors, cache streams and the table of combinations are made from
// the list of mechanisms.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/attention/attention.h"
#include "fovea/attention/key_rule.h"
#include "fovea/attention/stages.h"

namespace fovea {

class AttentionCache;  // cache/cache.h
struct AttentionCall;  // call.h
struct CallShape;      // call.h
struct StreamSpec;     // cache/streams.h

/// A setting that acts in a stage.
struct StageUse {
  StageId stage;
  std::string setting;  ///< "soft_cap 50"
  /// Why torch's scaled_dot_product_attention, and why our kernels, cannot express it.
  std::optional<std::string> why_not_sdpa = {}, why_not_kernels = {};
};

/// What computes the attention of one decoded token, or one mechanism's part of it; the fastest
/// comes first.
enum class TokenForm : uint8_t {
  decoder,    ///< the compiled decoder, on rows of keys and values
  kernels,    ///< kernels on the rows of the cache, between those of the decoder
  operations  ///< tensor operations on the streams
};
struct TokenUse {
  TokenForm form = TokenForm::decoder;
  std::string why = {};  ///< of `operations`: why there is no kernel
};

/// The sizes of a tensor; nothing where it must be absent.
using Sizes = std::optional<std::vector<int64_t>>;

/// A member of AttentionTensors.
struct TensorSlot {
  std::string_view name;  ///< in case files and errors
  at::Tensor AttentionTensors::*member;
  Sizes (*sizes)(const AttentionSpec& spec, const CallShape& shape);
  /// The setting that wants it, for errors: "bias.kind t5".
  std::string (*setting)(const AttentionSpec& spec);
  bool integers = false;  ///< int64; else floating
  /// Axis of the tokens, behind the batch: 1 in [b, t, ...], 2 in [b, heads, t, ...]. 0: the tensor
  /// is a parameter.
  int64_t token_axis = 0;
};

/// A value of the setting by its name in the docs.
struct MechanismSetting {
  std::string_view name;
  void (*apply)(AttentionSpec& spec);
};

struct Mechanism {
  std::string_view name;
  /// Visits its keys of the spec.
  void (*describe)(AttentionSpec& spec, FieldVisitor& v);
  /// ConfigError or UnsupportedError for values without a meaning, alone or with others.
  void (*check)(const AttentionSpec& spec) = nullptr;
  /// The settings that act, stage by stage; empty where it is neutral.
  std::vector<StageUse> (*uses)(const AttentionSpec& spec);
  std::span<const TensorSlot> tensors = {};
  /// ShapeError for tensors of the right sizes with wrong numbers.
  void (*check_call)(const AttentionCall& call) = nullptr;
  /// Rewrites keys and values before stage 1, and takes its setting and tensors from the call, so
  /// that stages and paths see finished rows. `cache`: the call's tokens come after those of the
  /// cache, whose streams of this mechanism it extends; null: the call has all keys.
  void (*rewrite_keys)(AttentionCall& call, AttentionCache* cache) = nullptr;
  /// Adds the streams that decoding needs (stream_rows.h); `keys` is the stream of the keys.
  void (*add_streams)(const AttentionSpec& spec, const StreamSpec& keys,
                      std::vector<StreamSpec>& all) = nullptr;
  /// What computes its part of one decoded token where it acts; token_of, where that depends on its
  /// values.
  TokenForm token = TokenForm::operations;
  TokenUse (*token_of)(const AttentionSpec& spec) = nullptr;
  std::span<const MechanismSetting> settings = {};
  /// Makes its keys neutral, for a mechanism that is put on a finished model (adapters, retrofit);
  /// null: the model that it is put on may have it, and keeps it.
  void (*remove)(AttentionSpec& spec) = nullptr;
  /// Its rule for distant keys where it acts and has one.
  std::optional<KeyRule> (*key_rule)(const AttentionSpec& spec) = nullptr;
};

/// All of them, in the order of their keys.
std::span<const Mechanism* const> mechanisms();

/// The settings that act, in the order of the mechanisms.
std::vector<StageUse> stage_uses(const AttentionSpec& spec);

/// `spec` as before such mechanisms were put on (Mechanism::remove).
AttentionSpec without_added_mechanisms(AttentionSpec spec);

/// What `spec` needs in a cache beside keys and values.
void add_mechanism_streams(const AttentionSpec& spec, const StreamSpec& keys,
                           std::vector<StreamSpec>& all);

/// The keys and values that stages read (Mechanism::rewrite_keys).
void rewrite_keys(AttentionCall& call, AttentionCache* cache);

/// The last form that a mechanism of the spec needs, with the first reason for it.
TokenUse token_use(const AttentionSpec& spec);

/// ShapeError unless the tensors of a call are those that its spec wants.
void check_mechanism_tensors(const AttentionCall& call);

}  // namespace fovea
