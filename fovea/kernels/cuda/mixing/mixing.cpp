// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cuda/mixing/mixing.h"

#include <algorithm>
#include <numeric>

#include "fovea/kernels/cuda/attention/band_masks.h"
#include "fovea/kernels/cuda/attention/operands.h"
#include "fovea/kernels/cuda/machine.h"
#include "fovea/kernels/cuda/mixing/slabs.h"

namespace fovea::kernels::cuda {
namespace {

using mixing::Bundle;
using mixing::HeadSize;
using mixing::kMixed;

// A grid has fewer than 2^16 blocks in its second axis.
constexpr int64_t kMostBatch = 1024, kMostLength = int64_t{1} << 21;

const HeadSize* head_size(int64_t head_dim) {
  for (const HeadSize& size : mixing::head_sizes())
    if (size.head_dim == head_dim) return &size;
  return nullptr;
}

bool mixes_heads(const MixingRule& rule) {
  return rule.mix_before.active() || rule.mix_after.active();
}
bool convolves(const MixingRule& rule) {
  return rule.kernel_before.active() || rule.kernel_after.active();
}

// Heads that both mixes keep together; 1 without mixes.
int64_t heads_together(const MixingRule& rule) {
  const auto width = [](const HeadMix& mix) { return mix.active() ? mix.width : 1; };
  return std::lcm(width(rule.mix_before), width(rule.mix_after));
}

Reason why_not_machine_mixes(const Machine& machine) {
  if (machine.major >= 9 && machine.shared_bytes >= mixing::kMostShared) return std::nullopt;
  return fmt::format("the mixing kernels need compute capability 9.0 or 10.0; got {}.{}",
                     machine.major, machine.minor);
}

Reason why_not_mixing_rule(const MixingRule& rule) {
  for (const KeyQueryKernel& kernel : {rule.kernel_before, rule.kernel_after})
    if (kernel.active() && (kernel.queries > mixing::kRowReach || kernel.keys > mixing::kKeyReach))
      return fmt::format("CUDA kernels convolve at most {} queries and {} keys", mixing::kRowReach,
                         mixing::kKeyReach);
  if (heads_together(rule) > kMixed)
    return fmt::format("CUDA kernels mix at most {} heads", kMixed);
  if (rule.kernel_before.active() && rule.equation != KernelEquation::eq5)
    return "CUDA kernels have equation eq5 alone";
  if (rule.renormalise) return "CUDA kernels do not renormalise rows";
  return std::nullopt;
}

Reason why_not_score(const ScoreParameters& rule) {
  if (rule.tau != nullptr) return "CUDA kernels that mix have no temperature";
  if (rule.soft_cap > 0.0f) return "CUDA kernels that mix have no soft-cap";
  if (rule.alibi != nullptr) return "CUDA kernels that mix have no ALiBi";
  if (rule.sink_logit != nullptr) return "CUDA kernels that mix have no sink logit";
  if (rule.gate.form != PairGate::Form::none)
    return "CUDA kernels that mix have no soft gate of Focus";
  return why_not_rule(rule);
}

Reason why_not_visits(std::span<const Visits> visits, const AttentionSizes& sizes) {
  const auto entry = band_masks().of(visits);
  const BandMask& mask = entry->mask;
  if (mask.why_not) return fmt::format("CUDA kernels do not know {}", *mask.why_not);
  if (!mask.causal || mask.window > 0) return "CUDA kernels that mix know causal masks alone";
  if (mask.query_offset != 0 || sizes.queries != sizes.keys)
    return "CUDA kernels that mix take queries that are all keys";
  return std::nullopt;
}

// Without visits the question is about sizes and settings alone.
template <class P>
Reason reason_against(const P& p) {
  const AttentionSizes& s = p.sizes;
  if (s.head_dim != s.value_dim) return "CUDA kernels take heads and values of one width";
  if (Reason why = why_not_machine_mixes(this_machine())) return why;
  if (head_size(s.head_dim) == nullptr) return "CUDA kernels mix heads of sizes 64, 96 and 128";
  if (s.batch > kMostBatch || s.queries > kMostLength)
    return fmt::format("CUDA kernels mix at most {} rows of at most {} tokens", kMostBatch,
                       kMostLength);
  if (Reason why = why_not_mixing_rule(p.mixing)) return why;
  if (Reason why = why_not_score(p.rule)) return why;
  if (p.members.active()) return "CUDA kernels that mix have no hard Focus";
  return p.visits.empty() ? std::nullopt : why_not_visits(p.visits, s);
}

template <class P>
void require_allowed(const P& p) {
  if (const Reason why = reason_against(p)) fail<UnsupportedError>("cuda", "{}", *why);
  require<ShapeError>(!p.visits.empty(), "cuda", "expected the visits of the call; got none");
  const int64_t together = heads_together(p.mixing);
  require<ShapeError>(p.sizes.heads % together == 0 && p.sizes.heads % p.sizes.kv_heads == 0,
                      "cuda", "expected groups of {} heads; got {} heads of {} key heads", together,
                      p.sizes.heads, p.sizes.kv_heads);
}

mixing::Taps taps_of(const KeyQueryKernel& kernel) {
  if (!kernel.active()) return {nullptr, 1, 1};
  return {kernel.taps, static_cast<int32_t>(kernel.queries), static_cast<int32_t>(kernel.keys)};
}

template <class P>
mixing::Problem problem_of(const P& p, const BandMasks::Entry& entry) {
  mixing::Problem out{};
  out.q = rows_of(p.q, "q");
  out.k = rows_of(p.k, "k");
  out.v = rows_of(p.v, "v");
  out.batch = static_cast<int32_t>(p.sizes.batch);
  out.heads = static_cast<int32_t>(p.sizes.heads);
  out.kv_heads = static_cast<int32_t>(p.sizes.kv_heads);
  out.length = static_cast<int32_t>(p.sizes.queries);
  out.scale = p.rule.scale;
  out.doc_start = entry.doc_start;
  out.doc_batch = entry.visits.size() > 1 ? p.sizes.queries : 0;
  out.before = taps_of(p.mixing.kernel_before);
  out.after = taps_of(p.mixing.kernel_after);
  out.lse = const_cast<float*>(p.lse);
  return out;
}

// Bundles of whole groups, one after the other; the last one may have fewer heads.
template <class F>
void for_bundles(const MixingRule& rule, int32_t heads, const F& f) {
  const auto together = static_cast<int32_t>(heads_together(rule));
  const int32_t most = kMixed / together * together;
  for (int32_t first = 0; first < heads; first += most) {
    Bundle bundle{};
    bundle.first = first;
    bundle.count = std::min(most, heads - first);
    f(bundle);
  }
}

// The bundle's matrices, in scratch of two.
void set_matrices(Bundle& u, const MixingRule& rule, float* matrices, Stream stream) {
  const auto spread = [&](const HeadMix& mix, bool turned, float* to) {
    check(mixing::spread_matrices(u, mix.weights, static_cast<int>(mix.width), turned, to, stream),
          "the matrices of mixed heads");
    return to;
  };
  u.before = spread(rule.mix_before, false, matrices);
  u.after = spread(rule.mix_after, true, matrices + kMixed * kMixed);
}
constexpr int64_t kMatrices = 2 * kMixed * kMixed;

// Where a kernel's gradient is summed; null where it is not wanted.
float* cleared(const KeyQueryKernel& kernel, float* gradient, const AttentionSizes& s,
               Stream stream) {
  if (!kernel.active() || gradient == nullptr) return nullptr;
  const int64_t numbers = s.batch * s.heads * kernel.queries * kernel.keys;
  fill_with_zeros(gradient, numbers * int64_t{sizeof(float)}, stream);
  return gradient;
}

void mixed_backward(const HeadSize& size, const mixing::Problem& problem,
                    const MixingBackward<BFloat16>& p, Stream stream) {
  const int64_t batch = p.sizes.batch, matrix = batch * kMixed * kMixed;
  Scratch scratch(Scratch::room<float>(kMatrices) + Scratch::room<float>(batch) +
                  2 * Scratch::room<float>(matrix));
  auto* const matrices = scratch.take<float>(kMatrices);
  auto* const exponent = scratch.take<float>(batch);
  auto* const d_before = scratch.take<float>(matrix);
  auto* const d_after = scratch.take<float>(matrix);
  for_bundles(p.mixing, problem.heads, [&](Bundle u) {
    set_matrices(u, p.mixing, matrices, stream);
    u.exponent = exponent;
    u.d_before = d_before;
    u.d_after = d_after;
    for (float* sum : {d_before, d_after})
      fill_with_zeros(sum, matrix * int64_t{sizeof(float)}, stream);
    check(mixing::bundle_exponent(problem, u, stream), "mixed attention's gradient");
    mixing::bundle_backward(size, problem, u, convolves(p.mixing), stream);
    const auto gather = [&](const HeadMix& mix, const float* sum, bool turned, float* to) {
      if (!mix.active() || to == nullptr) return;
      check(
          mixing::gather_matrices(problem, u, sum, static_cast<int>(mix.width), turned, to, stream),
          "the gradient of mixed heads");
    };
    gather(p.mixing.mix_before, d_before, false, p.dmix_before);
    gather(p.mixing.mix_after, d_after, true, p.dmix_after);
  });
}

}  // namespace

std::string_view mixing_isa() {
  if (mixing::head_sizes().empty() || why_not_machine_mixes(this_machine())) return {};
  return "sm_90 mma";
}

std::optional<std::string> why_not(const MixingForward<BFloat16>& p) { return reason_against(p); }
std::optional<std::string> why_not(const MixingBackward<BFloat16>& p) { return reason_against(p); }

void run(const MixingForward<BFloat16>& p) {
  if (p.sizes.batch == 0 || p.sizes.queries == 0) return;
  require_allowed(p);
  const HeadSize& size = *head_size(p.sizes.head_dim);
  const Stream stream = services().stream();
  const auto entry = band_masks().on_device(p.visits, stream);
  mixing::Problem problem = problem_of(p, *entry);
  problem.o = rows_of(p.out, "out");
  const int64_t rows = p.sizes.batch * p.sizes.heads * p.sizes.queries;
  Scratch scratch(Scratch::room<float>(rows) + Scratch::room<float>(kMatrices));
  auto* const unasked = scratch.take<float>(rows);
  if (problem.lse == nullptr) problem.lse = unasked;
  if (!mixes_heads(p.mixing)) {
    check(size.convolution_forward(problem, stream), "convolved attention");
    return;
  }
  auto* const matrices = scratch.take<float>(kMatrices);
  for_bundles(p.mixing, problem.heads, [&](Bundle u) {
    set_matrices(u, p.mixing, matrices, stream);
    mixing::bundle_forward(size, problem, u, convolves(p.mixing), stream);
  });
}

void run(const MixingBackward<BFloat16>& p) {
  if (p.sizes.batch == 0 || p.sizes.queries == 0) return;
  require_allowed(p);
  const AttentionSizes& s = p.sizes;
  const HeadSize& size = *head_size(s.head_dim);
  const Stream stream = services().stream();
  const auto entry = band_masks().on_device(p.visits, stream);
  mixing::Problem problem = problem_of(p, *entry);
  problem.d_o = rows_of(p.dout, "dout");
  problem.dq = rows_of(p.dq, "dq");
  problem.d_lse = p.dlse;
  problem.d_before = cleared(p.mixing.kernel_before, p.dkernel_before, s, stream);
  problem.d_after = cleared(p.mixing.kernel_after, p.dkernel_after, s, stream);
  const int64_t rows = s.batch * s.heads * s.queries,
                keys = s.batch * s.kv_heads * s.keys * s.head_dim,
                norms = s.batch * s.heads * mixing::kNorms;
  Scratch scratch(2 * Scratch::room<float>(keys) + Scratch::room<float>(norms) +
                  Scratch::room<float>(rows));
  problem.dk = zeros(scratch, keys, stream);
  problem.dv = zeros(scratch, keys, stream);
  problem.norms = zeros(scratch, norms, stream);
  problem.delta = scratch.take<float>(rows);
  check(size.row_norms(problem, stream), "the norms of attention's gradient");
  if (mixes_heads(p.mixing))
    mixed_backward(size, problem, p, stream);
  else
    check(size.convolution_backward(problem, stream), "convolved attention's gradient");
  check(size.round_keys(problem, problem.dk, rows_of(p.dk, "dk"), stream), "the gradient of keys");
  check(size.round_keys(problem, problem.dv, rows_of(p.dv, "dv"), stream),
        "the gradient of values");
}

}  // namespace fovea::kernels::cuda
