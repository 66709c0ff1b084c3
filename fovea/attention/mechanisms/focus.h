// Focus: learned groups of tokens decide which distant pairs attend (the Focus paper; spec 11, U-1
// ... U-26). First groups of tokens, then gates on pairs; sinkhorn.h computes b.
//
//   z_i = W_g (h_i - mean) scale,  S_ik = z_i.c_k,  g_i = softmax_k(S_ik / tau + b_k)
//   a_ij = g_i.g_j;  distant logits become s + ln(a_ij + epsilon) (`log`), or -inf where the top_k
//   groups of i and j have none in common (`hard`); local pairs keep s
//
// Gates exist for the pairs of a block of rows, [b, 1, rows, keys], never pairs x groups.
// Shapes: b batch, t tokens (or queries), s keys, k groups, c width of the layer's input, g d_g.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "fovea/attention/specs/focus.h"
#include "fovea/runtime/reading.h"

namespace fovea {

struct AttentionContext;
struct AttentionTensors;
struct Places;

/// Parameters that score the tokens of a layer: one set for all heads (11.1).
struct FocusParameters {
  at::Tensor weight_gc;     ///< W_g
  at::Tensor bias_g;        ///< undefined = 0
  at::Tensor centroids_kg;  ///< C
};

/// The same scores from inputs that are not standardised (U-24): W_g scale and the bias -W_g scale
/// mean. `mean_c` and the scalar `scale` may be undefined (0 and 1).
FocusParameters folded(const FocusParameters& parameters, const at::Tensor& mean_c,
                       const at::Tensor& scale);

/// Mean vector and 1 / root mean square of h - mean, from calibration tokens [n, c].
struct InputStatistics {
  at::Tensor mean_c, scale;
};
InputStatistics input_statistics(const at::Tensor& h_nc);

/// z [b, t, g] of the layer's input after the pre-norm (U-14), float32 (float64 for float64).
at::Tensor focus_features(const FocusParameters& parameters, const at::Tensor& h_btc);
/// S / tau, [b, t, k].
at::Tensor focus_scores(const FocusSpec& spec, const FocusParameters& parameters,
                        const at::Tensor& z_btg);

/// Assignments of tokens and their memberships.
struct FocusGroups {
  at::Tensor groups_btk;  ///< g, rows sum to 1
  at::Tensor members_bt;  ///< bit k set for the top_k groups, int64; no gradient
};
/// From S / tau and the potentials b (broadcast to [b, t, k]; undefined = 0).
FocusGroups group_tokens(const FocusSpec& spec, const at::Tensor& scores_btk,
                         const at::Tensor& potentials);

/// Bit masks of the `top_k` largest of every row; ties go to the lower index. [.., k] to [..]
/// int64.
at::Tensor top_members(const at::Tensor& scores, int64_t top_k);
/// Memberships of tokens that choose k of K groups at random: a baseline (U-26). Random groups are
/// equally large, so they keep fewer pairs than trained groups of unequal sizes.
at::Tensor random_members(at::IntArrayRef sizes, int64_t groups, int64_t top_k, uint64_t seed);
/// The same by a hash of the token (int64, any shape): a token has the same groups wherever it
/// stands.
at::Tensor hashed_members(const at::Tensor& tokens, int64_t groups, int64_t top_k, uint64_t seed);

/// Pairs that the gate leaves alone: i - j < window or j is a sink, [b or 1, 1, t, s] bool. Whether
/// they are allowed is another question.
at::Tensor focus_local(const FocusSpec& spec, const Places& places);
/// Whether two tokens have a group in common, [b, 1, t, s] bool.
at::Tensor have_common_group(const at::Tensor& query_members_bt, const at::Tensor& key_members_bs);

/// Whether the rule keeps every pair as it is, so that the layer is plain attention: all pairs are
/// local, or `hard` with 2k > K (13.1).
bool focus_is_neutral(const FocusSpec& spec, const AttentionContext& context, int64_t keys);

/// Share of pairs j <= i of one document that `hard` keeps: of all, and of the distant ones (9.9).
/// 1 where there are none.
struct PairsKept {
  double all = 1.0, distant = 1.0;
};
PairsKept pairs_kept(const FocusSpec& spec, const at::Tensor& members_bt,
                     const AttentionContext& context);
/// 1 - C(K-k, k) / C(K, k): what independent choices of k among K groups keep (11.4).
double expected_pairs(int64_t groups, int64_t top_k);

/// How groups fare: the paper's three ways of collapsing (Table 8), balance and sharpness.
struct FocusStatistics {
  double centroid_cosine = 0.0;  ///< A: mean cosine of two centroids
  double hidden_cosine = 0.0;    ///< B: mean cosine of a token's z and its centroid
  double effective_rank = 0.0;   ///< C: exp of the entropy of the spectrum of z, 1 ... d_g
  double largest_soft = 0.0;     ///< share of the assignments' mass in the largest group
  double largest_hard = 0.0;     ///< share of tokens whose first choice is the largest (dominance)
  double hard_entropy = 0.0;     ///< entropy of the shares of first choices over ln K, 0 ... 1
  double confidence = 0.0;       ///< mean largest g
};
FocusStatistics focus_statistics(const FocusParameters& parameters, const at::Tensor& z_btg,
                                 const at::Tensor& groups_btk);

/// The same in two parts: a few sums on the device of the tokens, and what is read off them on the
/// host. Empty without tokens.
class FocusSums {
 public:
  FocusSums() = default;
  FocusSums(const FocusParameters& parameters, const at::Tensor& z_btg,
            const at::Tensor& groups_btk);
  FocusStatistics statistics() const;
  const Reading& numbers() const { return numbers_; }

 private:
  Reading numbers_;
  int64_t tokens_ = 0, groups_ = 0, width_ = 0;
};

}  // namespace fovea
