// AttentionSpec: what one layer's attention is. Static, serialisable, without a tensor (seam 1 of
// the design).
//
// Attention is one pipeline of stages (stages.h is its table); a mechanism is a setting of it.
// Sources: Focal Attention, Eq. 4-6 (spec 10, F-1 ... F-12); Multi-Token Attention (spec 3, M-1 ...
// M-21); talking heads (spec 2); Differential (spec 1); Focus (spec 11, U-1 ... U-26); soft-cap
// spec 7.4; ALiBi 6.4; T5 6.3; sink logit 7.5; masks fovea/kernels/common/mask_rule.h.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/config/fields.h"
#include "fovea/kernels/common/mask_rule.h"

namespace fovea {

/// Stage 1 of the pipeline (spec 10).
struct TemperatureSpec {
  /// `constant`: logits q.k / (t sqrt(d)); `learned`: logits q.k / tau_i with tau from the layer's
  /// input.
  enum class Kind { constant, learned };
  /// F-1: `sequence` is the paper's mean (leaks the future), `prefix` the causal mean, `token` the
  /// row itself, `global` a free scalar.
  enum class Form { sequence, prefix, token, global };
  /// F-3: `clip` has gradient 0 outside the bounds, `straight_through` passes it, `sigmoid` maps
  /// smoothly into them.
  enum class Bound { clip, sigmoid, straight_through };

  Kind kind = Kind::constant;
  double value = 1.0;  ///< t of `constant`, > 0
  Form form = Form::prefix;
  Bound bound = Bound::clip;
  double tau_min = 5.0;   ///< for d = 128; used x sqrt(d / 128) (F-6)
  double tau_max = 10.0;  ///< for d = 128
  bool scale_bounds = true;

  void describe(FieldVisitor& v);
  /// The bounds of tau for head width d.
  double low(int64_t d) const;
  double high(int64_t d) const;
  bool operator==(const TemperatureSpec&) const = default;
};

/// Additive position bias, after the scale (stage 5).
struct BiasSpec {
  enum class Kind { none, alibi, t5 };
  Kind kind = Kind::none;
  int64_t buckets = 32;        ///< t5: table rows
  int64_t max_distance = 128;  ///< t5

  void describe(FieldVisitor& v);
  bool operator==(const BiasSpec&) const = default;
};

/// Extent of a key-query kernel [H, cq, ck]: cq queries up to the current one, ck keys around the
/// current one. Both 0 = no convolution.
struct KernelExtent {
  int64_t queries = 0;  ///< cq; row cq-1 of the kernel is the current query (M-4)
  int64_t keys = 0;     ///< ck; odd or even (M-3)

  bool active() const { return queries > 0; }
  /// Keys on the older and on the newer side of the current one.
  int64_t older_keys() const { return (keys - 1) / 2; }
  int64_t newer_keys() const { return keys / 2; }
  /// Query rows before the current one that a result needs.
  int64_t earlier_queries() const { return queries > 0 ? queries - 1 : 0; }
  void describe(FieldVisitor& v);
  bool operator==(const KernelExtent&) const = default;
};

/// Key-query convolution of Multi-Token Attention (stages 3 and 8; spec 3.2). The kernels are
/// AttentionTensors.
struct MultiTokenSpec {
  /// M-1: `eq5` drops a pair of an older query with a key that this query may not see; `eq4` with a
  /// key that the current query may not see (before the softmax; afterwards they agree).
  enum class Equation { eq5, eq4 };

  KernelExtent before;  ///< on the logits
  KernelExtent after;   ///< on the weights
  Equation equation = Equation::eq5;
  bool renormalise = false;  ///< M-9: convolved weights are divided by the sum of their row

  /// Query rows before the first one of a call that its results need: (cq-1) + (cq'-1) (3.6,
  /// M-10).
  int64_t earlier_queries() const { return before.earlier_queries() + after.earlier_queries(); }
  void describe(FieldVisitor& v);
  void check() const;
  bool operator==(const MultiTokenSpec&) const = default;
};

/// Head mixing (stages 4 and 9): Multi-Token Attention's head convolution (3.2, M-5) and
/// talking-heads attention (spec 2: both `full`, nothing else).
struct HeadMixSpec {
  /// `full`: one matrix over all heads; `groups`: one matrix for every `group` consecutive heads.
  enum class Kind { none, full, groups };

  Kind before = Kind::none;
  Kind after = Kind::none;
  int64_t group = 0;  ///< ch of `groups`

  /// Heads that mix with each other; 0 where nothing mixes.
  int64_t width(Kind kind, int64_t heads) const;
  void describe(FieldVisitor& v);
  void check(int64_t heads) const;
  bool operator==(const HeadMixSpec&) const = default;
};

/// What happens to each head's output o_i (stage 10; 3.2 steps 10 and 11).
struct HeadOutputSpec {
  enum class Norm { none, rms };  ///< RMSNorm per head with one gain [e] for all heads
  /// A constant of the depth l: `lambda` 1 - lambda_init(l) (1.2), `inverse_sqrt` 1/sqrt(l+1)
  /// (M-8).
  enum class DepthScale { none, lambda, inverse_sqrt };
  /// `scalar`: o sigma(u.o + c); `full`: o sigma(U o + c) element by element. u, U, c are shared by
  /// the heads and see the normed output (M-6).
  enum class Gate { none, scalar, full };

  Norm norm = Norm::none;
  double norm_eps = 1e-5;
  DepthScale depth_scale = DepthScale::none;
  Gate gate = Gate::none;

  bool active() const { return *this != HeadOutputSpec{}; }
  /// The factor of `depth_scale` in layer `depth`, counted from 0.
  double factor(int64_t depth) const;
  void describe(FieldVisitor& v);
  void check() const;
  bool operator==(const HeadOutputSpec&) const = default;
};

/// 0.8 - 0.6 exp(-0.3 l), l from 0 (1.2, M-18).
double lambda_init(int64_t depth);

/// Focus: learned groups of tokens decide which distant pairs attend (stages 5 and 6; spec 11).
/// Pairs with i - j < window and the first `sinks` positions of a document are local: the gate
/// leaves them alone.
struct FocusSpec {
  /// What a distant pair's logit s becomes; a = g_i.g_j (11.2). `mul`: s sigma(strength a); `log`:
  /// s + ln(a + epsilon); `logsig`: s + ln sigma(strength (a - threshold)); `identity`: s + ln(K a
  /// + epsilon); `hard`: s if the tokens share one of their top_k groups, else -inf;
  /// `straight_through`: s + ln(m + epsilon) with m the rule of `hard` and the gradient of a (U-8).
  enum class Gate { none, mul, log, logsig, identity, hard, straight_through };
  enum class Assignment { sinkhorn, softmax };
  /// Where the potentials b of Sinkhorn come from (11.3); `sequence` and `batch` see later tokens.
  enum class Potentials { ema, chunk, sequence, batch };

  Gate gate = Gate::none;
  int64_t groups = 8;        ///< K, at most 64
  int64_t top_k = 2;         ///< k: groups of a token under `hard`; 2k > K is full attention (U-13)
  int64_t window = 128;      ///< w
  int64_t sinks = 4;         ///< U-23
  int64_t width = 16;        ///< d_g
  double temperature = 0.1;  ///< tau of S / tau
  double strength = 10.0;    ///< lambda of `mul` and `logsig`
  bool learned_strength = true;  ///< of `logsig`: a tensor instead (U-2)
  double threshold = 0.5;        ///< theta of `logsig`
  double epsilon = 1e-6;
  Assignment assignment = Assignment::sinkhorn;
  Potentials potentials = Potentials::ema;
  int64_t rounds = 10;  ///< N of Sinkhorn
  int64_t chunk = 128;  ///< tokens of a chunk of `chunk`

  bool active() const { return gate != Gate::none; }
  /// Whether the gate reads assignments g, memberships, a learned strength.
  bool reads_groups() const { return active() && gate != Gate::hard; }
  bool reads_members() const { return gate == Gate::hard || gate == Gate::straight_through; }
  bool reads_strength() const { return gate == Gate::logsig && learned_strength; }
  /// `hard` keeps every pair, because any two choices of k among K groups meet (11.4).
  bool keeps_every_pair() const { return gate == Gate::hard && 2 * top_k > groups; }
  void describe(FieldVisitor& v);
  void check() const;
  bool operator==(const FocusSpec&) const = default;
};

/// Routing attention in its causal form (stage 6; spec 4.3): every head has `clusters` centroids, a
/// token belongs to the nearest one, and a query sees `keep` keys of its own cluster and document,
/// none elsewhere: the most recent ones, or those nearest to the centroid.
struct RoutingSpec {
  enum class Choice { recent, nearest };

  int64_t clusters = 0;  ///< 0 = off
  int64_t keep = 256;    ///< w
  Choice choice = Choice::recent;

  bool active() const { return clusters > 0; }
  bool reads_nearness() const { return active() && choice == Choice::nearest; }
  void describe(FieldVisitor& v);
  void check() const;
  bool operator==(const RoutingSpec&) const = default;
};

/// A given block-sparse rule (stage 6): positions of a document in blocks of `size`; a query sees
/// what is not later in the blocks that its own is paired with.
struct BlockPairsSpec {
  int64_t size = 0;            ///< 0 = off
  std::vector<int64_t> pairs;  ///< query block, key block, query block, key block, ...

  bool active() const { return size > 0; }
  void describe(FieldVisitor& v);
  void check() const;
  bool operator==(const BlockPairsSpec&) const = default;
};

/// A stage that this program registered (own_stage.h), in stage 5 before gate and bias.
struct OwnStageSpec {
  std::string name;            ///< "" = none
  std::vector<double> values;  ///< numbers that it reads

  bool active() const { return !name.empty(); }
  void describe(FieldVisitor& v);
  bool operator==(const OwnStageSpec&) const = default;
};

struct AttentionSpec {
  int64_t heads = 1;
  int64_t kv_heads =
      1;  ///< divides heads: MHA (= heads), GQA, MQA (1); head h reads h / (heads / kv_heads)
  int64_t head_dim = 64;  ///< d of queries and keys
  int64_t value_dim = 0;  ///< of values; 0 = head_dim (2 head_dim with `differential`)
  double scale = 0.0;     ///< replaces 1/sqrt(d) when > 0 (Gemma-2 27B, T5 = 1)
  TemperatureSpec temperature;
  double soft_cap = 0.0;  ///< c of c tanh(s / c); 0 = off
  MultiTokenSpec multi_token;
  HeadMixSpec head_mix;
  OwnStageSpec own;
  FocusSpec focus;
  RoutingSpec routing;
  BlockPairsSpec blocks;
  BiasSpec bias;
  MaskRule mask;
  bool sink_logit = false;  ///< one learned scalar per head joins the softmax with value 0
  double dropout = 0.0;     ///< on the weights that meet the values, counter-based
  /// Differential attention (spec 1): pairs of query heads are the two maps of one head, pairs of
  /// key heads their keys; there are half as many value heads and outputs.
  bool differential = false;
  HeadOutputSpec head_output;
  int64_t depth = 0;  ///< index l of the layer, from 0: lambda_init, head_output.depth_scale

  /// Keys of the JSON form (case files, config.json).
  void describe(FieldVisitor& v);
  /// ConfigError naming the first impossible setting (sizes, bounds, refused combinations).
  void check() const;
  int64_t value_width() const {
    return value_dim > 0 ? value_dim : differential ? 2 * head_dim : head_dim;
  }
  int64_t value_heads() const { return differential ? kv_heads / 2 : kv_heads; }
  int64_t output_heads() const { return differential ? heads / 2 : heads; }
  /// The factor of q.k for a constant temperature: scale / t.
  double logit_scale() const;
  bool operator==(const AttentionSpec&) const = default;
};

std::span<const std::string_view> enum_names(TemperatureSpec::Kind);
std::span<const std::string_view> enum_names(TemperatureSpec::Form);
std::span<const std::string_view> enum_names(TemperatureSpec::Bound);
std::span<const std::string_view> enum_names(BiasSpec::Kind);
std::span<const std::string_view> enum_names(MultiTokenSpec::Equation);
std::span<const std::string_view> enum_names(HeadMixSpec::Kind);
std::span<const std::string_view> enum_names(HeadOutputSpec::Norm);
std::span<const std::string_view> enum_names(HeadOutputSpec::DepthScale);
std::span<const std::string_view> enum_names(HeadOutputSpec::Gate);
std::span<const std::string_view> enum_names(FocusSpec::Gate);
std::span<const std::string_view> enum_names(FocusSpec::Assignment);
std::span<const std::string_view> enum_names(FocusSpec::Potentials);
std::span<const std::string_view> enum_names(RoutingSpec::Choice);
std::span<const std::string_view> enum_names(MaskRule::Sparsity);

/// Visits the keys of a mask rule (here because kernels/ knows no config).
void describe_mask(MaskRule& rule, FieldVisitor& v);

}  // namespace fovea
