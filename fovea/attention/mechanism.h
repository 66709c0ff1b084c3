// Mechanism: everything that attention/ needs to know about one setting of AttentionSpec, as one
// value. Spec, checks, the reference, tensors, cache streams and the table of combinations are made
// from the list of mechanisms.
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

class CachedStreams;   // stream_spec.h
struct AttentionCall;  // call.h
struct CallShape;      // call.h
struct Places;         // places.h
struct Selection;      // mechanisms/selector.h
struct SelectorRows;   // mechanisms/selector.h
struct StageRows;      // stage_rows.h
struct StreamSpec;     // stream_spec.h

/// A setting that acts in a stage.
struct StageUse {
  StageId stage;
  std::string setting;  ///< "soft_cap 50"
  /// Why torch's scaled_dot_product_attention, and why our kernels, cannot express it.
  std::optional<std::string> why_not_sdpa = {}, why_not_kernels = {};
};

/// The form that computes the attention of one decoded token, or one mechanism's part of it; the
/// fastest comes first.
enum class TokenForm : uint8_t {
  decoder,    ///< the compiled decoder, on rows of keys and values
  kernels,    ///< kernels on the rows of the cache, between those of the decoder
  operations  ///< tensor operations on the streams
};
struct TokenUse {
  TokenForm form = TokenForm::decoder;
  std::string why = {};  ///< of `operations`: why there is no kernel
};

/// The part of a mechanism in a stage.
struct StageFormula {
  StageId stage;
  /// The new x: logits in stages 1 to 7, weights in stages 8 and 9, the weights that meet the
  /// values in stage 10. Differentiable. A neutral mechanism returns x itself, without an
  /// operation.
  at::Tensor (*apply)(const at::Tensor& x_bhts, const StageRows& rows);
  /// Rows before a result that it reads; null: none.
  int64_t (*earlier_rows)(const AttentionSpec& spec) = nullptr;
  /// Columns to either side of a pair that it reads, at most; null: none.
  int64_t (*columns_beside)(const AttentionSpec& spec) = nullptr;
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
  /// Axis of the query heads where the two maps of Differential have their own; -1: they share it.
  int64_t head_axis = -1;
};

/// Rows of a text that every later query finds its keys among: the first and the last; `last` 0:
/// all rows.
struct KeptKeys {
  int64_t first = 0, last = 0;
};

/// A rule for distant keys that positions alone decide.
struct KeyPattern {
  /// The same attention by the mask alone, with neutral keys, where it has that form; `plain`: also
  /// where it has it only because nothing in the layer tells distances.
  void (*to_mask)(AttentionSpec& spec, bool plain);
  /// Keys that a query sees, mean over the query heads.
  double (*visible_keys)(const AttentionSpec& spec, int64_t query, int64_t length);
  /// How many tokens before a query its window reaches; -1: nothing restricts it.
  int64_t (*window_reach)(const AttentionSpec& spec);
  KeptKeys (*kept_keys)(const AttentionSpec& spec);
};

/// A selector whose rows read a fixed number of keys.
struct FixedChoice {
  double keys = 0.0;      ///< that a row reads of those that it may see
  double searched = 0.0;  ///< share of all numbers of keys that the choice reads
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
  /// The reference's part of it, stage by stage. A mechanism that acts in a stage has a formula for
  /// it here, or one of the members from `rewrite_keys` to `output`.
  std::span<const StageFormula> formulas = {};
  /// Stage 0: rewrites keys and values, and takes its setting and tensors from the call, so that
  /// later stages and paths see finished rows. `cache`: the call's tokens come after those of the
  /// cache, whose streams of this mechanism it extends; null: the call has all keys.
  void (*rewrite_keys)(AttentionCall& call, CachedStreams* cache) = nullptr;
  /// Stage 1 in place of scaled q.k: logits of some queries and keys; undefined where neutral.
  at::Tensor (*scores)(const AttentionCall& call, const at::Tensor& q_bhtd,
                       const at::Tensor& k_bgsd, const at::Tensor& tau_bt) = nullptr;
  /// Stage 6: which of the allowed pairs remain, [b or 1, 1 or h, t, s]. It runs before stage 1,
  /// because convolutions read the relation too (Mask0).
  at::Tensor (*visible)(const at::Tensor& allowed, const StageRows& rows) = nullptr;
  /// Stage 6 of a selector: the keys that each row chooses among the allowed ones.
  Selection (*select)(const SelectorRows& rows) = nullptr;
  /// Stage 10 after the values: the new output [b, h, t, e].
  at::Tensor (*output)(const at::Tensor& out_bhte, const at::Tensor& weights_bhts,
                       const StageRows& rows) = nullptr;
  std::span<const TensorSlot> tensors = {};
  /// ShapeError for tensors of the right sizes with wrong numbers.
  void (*check_call)(const AttentionCall& call) = nullptr;
  /// Adds the streams that decoding needs (stream_rows.h); `keys` is the stream of the keys.
  void (*add_streams)(const AttentionSpec& spec, const StreamSpec& keys,
                      std::vector<StreamSpec>& all) = nullptr;
  /// The form that computes its part of one decoded token, where it acts; token_of, where the form
  /// depends on its values.
  TokenForm token = TokenForm::operations;
  TokenUse (*token_of)(const AttentionSpec& spec) = nullptr;
  std::span<const MechanismSetting> settings = {};
  /// Makes its keys neutral, for a mechanism that is put on a finished model (adapters, retrofit);
  /// null: the model that it is put on may have it, and keeps it.
  void (*remove)(AttentionSpec& spec) = nullptr;
  /// Its rule for distant keys where it acts and has one.
  std::optional<KeyRule> (*key_rule)(const AttentionSpec& spec) = nullptr;
  /// A key rule that reads queries and keys before their rotation.
  bool plain_heads = false;
  /// Its key rule in numbers where positions alone decide it.
  const KeyPattern* pattern = nullptr;
  /// Where it is a selector whose rows read a fixed number of the `visible` keys.
  std::optional<FixedChoice> (*fixed_choice)(const AttentionSpec& spec, double visible) = nullptr;
  /// Whether it acts, but changes no pair of this call, so that the call does without it.
  bool (*is_neutral)(const AttentionCall& call) = nullptr;
  /// Fits a call whose keys stand in for its values (maps and telemetry).
  void (*without_values)(AttentionCall& call) = nullptr;
  /// i - j as position biases count it, int64 [b or 1, t, s]; undefined: as places say.
  at::Tensor (*distances)(const AttentionSpec& spec, const Places& places) = nullptr;
};

/// All of them, in the order of their keys.
std::span<const Mechanism* const> mechanisms();

/// All formulas of a stage, in the order of the mechanisms.
std::span<const StageFormula> stage_formulas(StageId stage);

/// Rows before a result that formulas read: in all stages, and in those after the softmax.
struct EarlierRows {
  int64_t all = 0, after = 0;
};
EarlierRows earlier_rows(const AttentionSpec& spec);

/// Columns to either side of a pair that a stage reads, at most.
int64_t columns_beside(const AttentionSpec& spec);

/// The settings that act, in the order of the mechanisms.
std::vector<StageUse> stage_uses(const AttentionSpec& spec);

/// `spec` as before such mechanisms were put on (Mechanism::remove).
AttentionSpec without_added_mechanisms(AttentionSpec spec);

/// Adds the streams that `spec` needs in a cache beside keys and values.
void add_mechanism_streams(const AttentionSpec& spec, const StreamSpec& keys,
                           std::vector<StreamSpec>& all);

/// The keys and values that stages read (Mechanism::rewrite_keys).
void rewrite_keys(AttentionCall& call, CachedStreams* cache);

/// The last form that a mechanism of the spec needs, with the first reason for it.
TokenUse token_use(const AttentionSpec& spec);

/// The pattern of the mechanism whose key rule has one; null without.
const KeyPattern* key_pattern(const AttentionSpec& spec);

/// Whether a mechanism that acts reads queries and keys before their rotation.
bool reads_plain_heads(const AttentionSpec& spec);

/// The layer's selector, where it reads a fixed number of keys.
std::optional<FixedChoice> fixed_choice(const AttentionSpec& spec, double visible);

/// i - j as position biases count it (Mechanism::distances).
at::Tensor counted_distances(const AttentionSpec& spec, const Places& places);

/// The same attention: patterns in terms of the mask (KeyPattern::to_mask), so that all kernels,
/// decoders and caches of a mask run them.
AttentionSpec in_mask_terms(AttentionSpec spec);

/// The call with such a spec, without the tensors that it has no use for.
AttentionCall in_mask_terms(AttentionCall call);

/// The same call without mechanisms that change none of its pairs (Mechanism::is_neutral).
AttentionCall without_neutral_mechanisms(AttentionCall call);

/// ShapeError unless the tensors of a call are those that its spec wants.
void check_mechanism_tensors(const AttentionCall& call);

}  // namespace fovea
