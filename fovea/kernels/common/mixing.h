// The contract of the mixing kernels: attention whose logits and weights are joined across
// neighbouring queries, keys and heads. Multi-Token Attention (spec 3) and talking heads (spec 2).
//
// For one row of the batch, `seen(i, j)` is the relation of Visits (spec 0.1). Outside of the map,
// P(h, i, j) = 0 and s(h, i, j) = 0. Only rows of one document form pairs (M-11, below):
//
// clang-format off
//   s0[h,i,j] = soft_cap(scale_i q[h,i].k[g(h),j])                      g(h) = h / (heads/kv_heads)
//   s1[h,i,j] = sum_ab Kb[h,a,b] seen(r,x) s0[h,r,x]                    key-query kernel
//               with r = i - (cq-1) + a,  x = j - older + b             (3.2 step 3, M-4, M-3)
//   s2[o,i,j] = sum_h Wb[o,h] s1[h,i,j]                                 head mix (step 4, M-5)
//   s3[h,i,j] = a_ij s2[h,i,j] + b_ij + bias[h](i - j)                  gate and biases (0.1)
//   lse[h,i]  = ln(sum_j seen(i,j) w_ij exp(s3[h,i,j]) + exp(sink[h]))  the sink only where given
//   P [h,i,j] = seen(i,j) w_ij exp(s3[h,i,j] - lse[h,i])
//   P1[h,i,j] = seen(i,j) sum_ab Ka[h,a,b] P[h,r,x]                     convolution after (step 6)
//   P2[h,i,j] = P1[h,i,j] / n[h,i],  n = sum_j P1 where |sum| > 1e-6, else 1; only `renormalise`
//   P3[o,i,j] = sum_c P2[c,i,j] Wa[c,o]                                 head mix after (step 7)
//   out[h,i]  = sum_j drop(h,i,j) P3[h,i,j] v[g(h),j]                   (steps 8, 9; M-16)
// clang-format on
//
// The gate of Focus (pair_gate.h) is one of the factor w of a weight, the factor a of a logit and
// the term b; the others are neutral. Hard Focus is part of seen(): MemberMask.
//
// older = (ck-1)/2, also for even ck (M-3). With Equation::eq4 the pair (r,x) counts in s1 where
// seen(i,x) instead of seen(r,x) (M-1). A stage whose pointer is null is the identity.
//
// Rows of one document (M-11): row r counts for row i only if first[i] <= r <= i. Row i stands in a
// run of equal Visits::query.document labels, and first[i] is the first row of that run. Row 0 is
// the first query of the call: earlier queries do not exist, so decoding passes the
// (cq-1) + (cq'-1) earlier queries too and drops their rows of `out` (M-10).
//
// Gradients, with d(.) the derivative of the loss, dP3 = drop dout.v, and * a convolution turned
// round (rows later, taps reversed):
// clang-format off
//   dv[g,j] += sum_hi drop P3 dout[h,i]      dWa[c,o] = sum_ij P2[c] dP3[o]       dP2 = Wa dP3
//   dP1 = (dP2 - renormalise ? sum_j P2 dP2 : 0) / n  where seen, else 0   (|sum| <= 1e-6: dP2)
//   dKa[h,a,b] = sum_ij dP1[h,i,j] P[h,r,x]          dP = Ka * dP1
//   ds3[h,i,j] = P[h,i,j] (dP[h,i,j] - D[h,i]),  D[h,i] = sum_j P dP - dlse[h,i]: not dout.out,
//   because the convolution after the softmax joins rows
//   ds2 = a ds3,  dz_ij = sum_h ds3[h,i,j] (w'/w, s2 a' or b'),  dbias[h](n) = sum_(i-j=n) ds3
//   dsink[h] = -sum_i exp(sink[h] - lse[h,i]) D[h,i]
//   dWb[o,h] = sum_ij ds2[o] s1[h]       ds1 = Wb^T ds2
//   dKb[h,a,b] = sum_ij ds1[h,i,j] seen s0[h,r,x]
//   ds0 = seen (Kb * ds1)  (eq4: the mask is inside the sum)
//   dq, dk through soft_cap' and scale_i;   dtau[h,i] = -(q.dq)/tau_i
// clang-format on
//
// Memory: q, out [b][h][t], k, v [b][g][s] by strides with contiguous width (HeadRows). The kernels
// take scratch that is linear in the tokens. Each thread has a strip of kStripRows queries x all
// keys that it sees x the heads of a bundle. It also has packed keys and values of the bundle's key
// heads. Forward, a strip beyond MixingForward::most_kept is computed a second time instead of
// kept. A forward pass saves lse, and n where rows are renormalised: all that the backward pass
// needs beside the inputs. Everything else is computed again.
//
// Threads and bits: one task is (row of the batch, bundle of heads, range of strips). Strips lie on
// a fixed grid, each result depends on its own strip grid alone, and sums over tasks are taken in a
// fixed order. So results have the same bits for any number of threads and any neighbours in the
// batch. Causality and documents hold to the bit: pairs that are not seen are chosen away, not
// multiplied by 0.
//
// Empty rows: P = 0, lse = -inf (the sink, where given), out 0 unless earlier rows reach it through
// the convolution after (which seen(i, j) forbids: 0), gradients 0.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "fovea/kernels/common/contract.h"

namespace fovea::kernels {

/// A key-query kernel for every query head: [heads][queries][keys], row queries-1 is the current
/// query (M-4). At most kMostKernelRows x kMostKernelKeys; null: no convolution.
struct KeyQueryKernel {
  const float* taps = nullptr;
  int64_t queries = 0, keys = 0;

  bool active() const { return taps != nullptr; }
  int64_t earlier() const { return active() ? queries - 1 : 0; }
  int64_t older() const { return active() ? (keys - 1) / 2 : 0; }
  int64_t newer() const { return active() ? keys / 2 : 0; }
};

/// Matrices over groups of `width` consecutive heads, [heads / width][width][width]: stored
/// (out, in) before the softmax and (in, out) after it, as AttentionTensors has them. At most
/// kMostMixedHeads wide; null: heads do not mix.
struct HeadMix {
  const float* weights = nullptr;
  int64_t width = 0;

  bool active() const { return weights != nullptr; }
};

/// The largest kernels and groups, inclusive (the paper's largest are 8 x 15 and 32).
inline constexpr int64_t kMostKernelRows = 8, kMostKernelKeys = 15, kMostMixedHeads = 32;

/// Which pairs of an older query count in the convolution before the softmax (M-1).
enum class KernelEquation : uint8_t { eq5, eq4 };

/// The stages that join pairs. A stage without pointer is the identity.
struct MixingRule {
  KeyQueryKernel kernel_before, kernel_after;
  HeadMix mix_before, mix_after;
  KernelEquation equation = KernelEquation::eq5;
  bool renormalise = false;  ///< M-9; acts only with kernel_after

  /// Query rows that a result needs beside its own (3.6).
  int64_t earlier() const { return kernel_before.earlier() + kernel_after.earlier(); }
};

/// Hard Focus (spec 11.2, U-9, U-10, U-23). A pair is seen only where the tokens share a group, or
/// i - j < window in positions, or the key's position is below `sinks`. Bit n of a token is set
/// where the token is in group n. Null: no groups.
struct MemberMask {
  const int64_t *query = nullptr, *key = nullptr;  ///< [batch][queries], [batch][keys]
  int64_t query_batch = 0, key_batch = 0;          ///< numbers from one batch row to the next
  int64_t window = 1, sinks = 0;

  bool active() const { return key != nullptr; }
};

/// All elements of `out` are written.
template <class T>
struct MixingForward {
  AttentionSizes sizes;
  ScoreParameters rule;
  MixingRule mixing;
  MemberMask members;
  std::span<const Visits> visits;  ///< one for all rows of the batch, or one each
  HeadRows<const T> q, k, v;
  HeadRows<T> out;
  float* lse = nullptr;       ///< [batch][heads][queries], includes the sink; may be null
  float* row_sums = nullptr;  ///< [batch][heads][queries]: n of `renormalise`; may be null
  /// Floats of a strip's exponentials that a thread keeps between its two passes over the keys, at
  /// most; longer texts compute them twice. Results are the same bits.
  int64_t most_kept = int64_t{64} << 20;
};

/// Gradients that are null are not computed, except dq, dk and dv, which always are.
template <class T>
struct MixingBackward {
  AttentionSizes sizes;
  ScoreParameters rule;
  MixingRule mixing;
  MemberMask members;
  std::span<const Visits> visits;
  HeadRows<const T> q, k, v, dout;
  const float* lse = nullptr;       ///< of the forward pass
  const float* row_sums = nullptr;  ///< of the forward pass, where rows are renormalised
  const float* dlse = nullptr;      ///< [batch][heads][queries]; null: zeros
  HeadRows<T> dq, dk, dv;           ///< all elements are written
  /// Gradients of every row of the batch, to be summed over the batch: [batch][shape of the
  /// operand].
  float *dkernel_before = nullptr, *dkernel_after = nullptr;
  float *dmix_before = nullptr, *dmix_after = nullptr;
  float* dtau = nullptr;   ///< [batch][heads][queries], to be summed over heads; needs rule.tau
  float* dsink = nullptr;  ///< [batch][heads], to be summed over the batch; needs rule.sink_logit
  float* dbias = nullptr;  ///< [batch][heads][bias_count], likewise; needs rule.distance_bias
  /// [batch][queries][columns] and [batch][keys][columns]; both or none; need rule.gate.
  float *dgate_query = nullptr, *dgate_key = nullptr;
};

/// Queries of a call at most: the largest kernels need 7 + 7 earlier ones (3.6).
inline constexpr int64_t kMostMixingQueries = 16;

/// `rule` without dropout. Every row of the batch may see other keys.
template <class T>
struct MixingDecode {
  AttentionSizes sizes;
  ScoreParameters rule;
  MixingRule mixing;
  MemberMask members;
  std::span<const RowVisits> rows;  ///< [batch][queries]; the two ranges of a row are disjoint
  int64_t results = 0;              ///< rows of `out` and `lse`: of the last queries
  HeadRows<const T> q, k, v;
  HeadRows<T> out;
  float* lse = nullptr;  ///< [batch][heads][results], includes the sink; may be null
};

/// Heads that one task works on together: the least common multiple of the two groups' widths, so
/// that bundles are whole groups of both; 1 without head mixes.
int64_t mixed_heads(const MixingRule& rule);

}  // namespace fovea::kernels
