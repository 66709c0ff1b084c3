// torch.ops.fovea_kernels: the attention kernels as operators of torch's stable ABI, so that one
// library serves every torch from 2.10 on. Gradients and fake kernels are registered in Python
// (python/fovea/_operator.py), which reads the names of the operands from the schema.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/kernels/backend.h"

namespace {

namespace kernels = fovea::kernels;
using fovea::TokenPlace;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// The operands of a call that may be absent: float32 and contiguous; places are int64.
enum Slot {
  kTau,
  kBias,
  kSinkLogit,
  kKernelBefore,
  kKernelAfter,
  kMixBefore,
  kMixAfter,
  kLearnedSlots,
  kAlibi = kLearnedSlots,
  kQueryPositions,
  kKeyPositions,
  kQueryDocuments,
  kKeyDocuments,
  kSlots
};
// The sizes of an operand: a letter an axis, B batch, b batch or 1, h heads, t queries, s keys, n
// any. Kernels write its gradient for every row of the batch; that of tau for every head.
struct SlotRow {
  const char* name;
  const char* sizes;
};
constexpr SlotRow kTable[kSlots] = {{"tau", "Bt"},
                                    {"bias", "hn"},
                                    {"sink_logit", "h"},
                                    {"kernel_before", "hnn"},
                                    {"kernel_after", "hnn"},
                                    {"mix_before", "nnn"},
                                    {"mix_after", "nnn"},
                                    {"alibi", "h"},
                                    {"query_positions", "bt"},
                                    {"key_positions", "bs"},
                                    {"query_documents", "bt"},
                                    {"key_documents", "bs"}};

constexpr const char* kSettings =
    "bool causal, float scale, float soft_cap, int bias_first, int window, int sinks, bool eq4, "
    "bool renormalise";

std::string schema_of_arguments() {
  std::string all = "Tensor q, Tensor k, Tensor v";
  for (const SlotRow& slot : kTable) all += std::string(", Tensor? ") + slot.name;
  return all + ", " + kSettings;
}

struct Call {
  Tensor q, k, v;
  std::array<std::optional<Tensor>, kSlots> slots;
  bool causal = true, eq4 = false, renormalise = false;
  double scale = 1.0, soft_cap = 0.0;
  int64_t bias_first = 0, window = 0, sinks = 0;

  const std::optional<Tensor>& operator[](Slot slot) const { return slots[slot]; }
  bool joins_pairs() const {
    return slots[kKernelBefore] || slots[kKernelAfter] || slots[kMixBefore] || slots[kMixAfter];
  }
};

// Takes the values of a stack one by one; each is taken once.
class Values {
 public:
  explicit Values(const StableIValue* next) : next_(next) {}

  template <class T>
  T take() {
    return torch::stable::detail::to<T>(*next_++);
  }

  Call take_call() {
    Call call{.q = take<Tensor>(), .k = take<Tensor>(), .v = take<Tensor>()};
    for (std::optional<Tensor>& slot : call.slots) slot = take<std::optional<Tensor>>();
    call.causal = take<bool>();
    call.scale = take<double>();
    call.soft_cap = take<double>();
    call.bias_first = take<int64_t>();
    call.window = take<int64_t>();
    call.sinks = take<int64_t>();
    call.eq4 = take<bool>();
    call.renormalise = take<bool>();
    return call;
  }

 private:
  const StableIValue* next_;
};

template <class... Args>
void expect(bool holds, fmt::format_string<Args...> text, Args&&... args) {
  fovea::require<fovea::ShapeError>(holds, "fovea.attention", text, std::forward<Args>(args)...);
}

void check_slot(const Call& call, int n) {
  const SlotRow& slot = kTable[n];
  const Tensor& x = *call.slots[n];
  const std::string sizes = slot.sizes;
  expect(x.is_cpu() && x.is_contiguous() && x.dim() == std::ssize(sizes) &&
             x.scalar_type() == (n < kQueryPositions ? ScalarType::Float : ScalarType::Long),
         "{} must be contiguous on the CPU with {} axes, {}", slot.name, sizes.size(),
         n < kQueryPositions ? "float32" : "int64");
  for (size_t axis = 0; axis < sizes.size(); ++axis) {
    const int64_t size = x.size(static_cast<int64_t>(axis));
    const auto fits = [&](int64_t expected) {
      expect(size == expected, "axis {} of {} must have {} numbers; got {}", axis, slot.name,
             expected, size);
    };
    switch (sizes[axis]) {
      case 'B':
        fits(call.q.size(0));
        break;
      case 'b':
        fits(size == 1 ? 1 : call.q.size(0));
        break;
      case 'h':
        fits(call.q.size(1));
        break;
      case 't':
        fits(call.q.size(2));
        break;
      case 's':
        fits(call.k.size(2));
        break;
      default:
        expect(size > 0, "axis {} of {} is empty", axis, slot.name);
    }
  }
}

void check_mix(const Call& call, Slot slot) {
  if (!call[slot]) return;
  const Tensor& x = *call[slot];
  expect(x.size(1) == x.size(2) && x.size(0) * x.size(1) == call.q.size(1),
         "{} must be [heads / width, width, width] for {} heads; got [{}, {}, {}]",
         kTable[slot].name, call.q.size(1), x.size(0), x.size(1), x.size(2));
}

void check_rows(const Tensor& x, const char* name, const Tensor& q) {
  expect(x.is_cpu() && x.dim() == 4 && x.scalar_type() == q.scalar_type(),
         "{} must be [batch, heads, tokens, width] on the CPU, of the dtype of q", name);
  expect(x.stride(3) == 1 || x.size(3) <= 1, "{} must be contiguous along its last axis", name);
}

void check(const Call& call) {
  const Tensor &q = call.q, &k = call.k, &v = call.v;
  check_rows(q, "q", q);
  check_rows(k, "k", q);
  check_rows(v, "v", q);
  expect(k.size(0) == q.size(0) && v.size(0) == q.size(0), "q, k and v must have one batch size");
  expect(k.size(1) > 0 && q.size(1) % k.size(1) == 0 && v.size(1) == k.size(1),
         "the heads of q must be a multiple of those of k and v; got {}, {} and {}", q.size(1),
         k.size(1), v.size(1));
  expect(k.size(2) == v.size(2) && k.size(3) == q.size(3),
         "k must have the tokens of v and the width of q");
  for (int n = 0; n < kSlots; ++n)
    if (call.slots[n]) check_slot(call, n);
  check_mix(call, kMixBefore);
  check_mix(call, kMixAfter);
}

const float* floats(const std::optional<Tensor>& x) {
  return x ? static_cast<const float*>(x->const_data_ptr()) : nullptr;
}

template <class T>
kernels::HeadRows<const T> rows_of(const Tensor& x) {
  return {static_cast<const T*>(x.const_data_ptr()), x.stride(0), x.stride(1), x.stride(2)};
}

template <class T>
kernels::HeadRows<T> writable_rows_of(const Tensor& x) {
  return {static_cast<T*>(x.mutable_data_ptr()), x.stride(0), x.stride(1), x.stride(2)};
}

// Places of the tokens of batch row b; `first` is the position of token 0 where none are given.
std::vector<TokenPlace> places(const std::optional<Tensor>& positions,
                               const std::optional<Tensor>& documents, int64_t b, int64_t tokens,
                               int64_t first) {
  const auto row = [&](const std::optional<Tensor>& x) {
    return x ? static_cast<const int64_t*>(x->const_data_ptr()) + (x->size(0) == 1 ? 0 : b * tokens)
             : nullptr;
  };
  const int64_t *const position = row(positions), *const document = row(documents);
  std::vector<TokenPlace> all(static_cast<size_t>(tokens));
  for (int64_t n = 0; n < tokens; ++n)
    all[n] = {.document = document != nullptr ? document[n] : 0,
              .position = position != nullptr ? position[n] : first + n};
  return all;
}

std::vector<fovea::Visits> visits_of(const Call& call) {
  const fovea::MaskRule rule{.causal = call.causal, .window = call.window, .sinks = call.sinks};
  bool one = true;
  for (int n = kQueryPositions; n < kSlots; ++n)
    one &= !call.slots[n] || call.slots[n]->size(0) == 1;
  const int64_t queries = call.q.size(2), keys = call.k.size(2);
  std::vector<fovea::Visits> all;
  for (int64_t b = 0; b < (one ? 1 : call.q.size(0)); ++b)
    all.push_back(make_visits(
        rule, places(call[kQueryPositions], call[kQueryDocuments], b, queries, keys - queries),
        places(call[kKeyPositions], call[kKeyDocuments], b, keys, 0), kernels::cpu().tile_sizes()));
  return all;
}

kernels::ScoreParameters score_parameters(const Call& call) {
  return {.scale = static_cast<float>(call.scale),
          .tau = floats(call[kTau]),
          .soft_cap = static_cast<float>(call.soft_cap),
          .alibi = floats(call[kAlibi]),
          .distance_bias = floats(call[kBias]),
          .bias_first = call.bias_first,
          .bias_count = call[kBias] ? call[kBias]->size(1) : 0,
          .sink_logit = floats(call[kSinkLogit])};
}

kernels::MixingRule mixing_rule(const Call& call) {
  const auto kernel = [](const std::optional<Tensor>& x) {
    return x ? kernels::KeyQueryKernel{floats(x), x->size(1), x->size(2)}
             : kernels::KeyQueryKernel{};
  };
  const auto mix = [](const std::optional<Tensor>& x) {
    return x ? kernels::HeadMix{floats(x), x->size(1)} : kernels::HeadMix{};
  };
  return {.kernel_before = kernel(call[kKernelBefore]),
          .kernel_after = kernel(call[kKernelAfter]),
          .mix_before = mix(call[kMixBefore]),
          .mix_after = mix(call[kMixAfter]),
          .equation = call.eq4 ? kernels::KernelEquation::eq4 : kernels::KernelEquation::eq5,
          .renormalise = call.renormalise};
}

template <class T, class Problem>
void set_inputs(Problem& problem, const Call& call, const std::vector<fovea::Visits>& visits) {
  const Tensor &q = call.q, &k = call.k, &v = call.v;
  problem.sizes = {.batch = q.size(0),
                   .heads = q.size(1),
                   .kv_heads = k.size(1),
                   .queries = q.size(2),
                   .keys = k.size(2),
                   .head_dim = q.size(3),
                   .value_dim = v.size(3)};
  problem.rule = score_parameters(call);
  problem.visits = visits;
  problem.q = rows_of<T>(q);
  problem.k = rows_of<T>(k);
  problem.v = rows_of<T>(v);
  if constexpr (requires { problem.mixing; }) problem.mixing = mixing_rule(call);
}

template <class F>
void with_type(const Tensor& x, const F& f) {
  if (x.scalar_type() == ScalarType::Float) return f(0.0f);
  fovea::require<fovea::UnsupportedError>(
      x.scalar_type() == ScalarType::BFloat16, "fovea.attention",
      "expected q, k and v in float32 or bfloat16; convert them by .float()");
  f(fovea::BFloat16{});
}

// [b, h, t, width] in the memory order of [b, t, h, width].
Tensor new_by_token(const Tensor& like, int64_t width) {
  const std::array<int64_t, 4> sizes{like.size(0), like.size(2), like.size(1), width};
  return torch::stable::transpose(torch::stable::new_empty(like, sizes), 1, 2);
}

Tensor new_floats(const Tensor& like, const std::vector<int64_t>& sizes) {
  return torch::stable::new_empty(like, sizes, ScalarType::Float);
}

void forward(StableIValue* stack, uint64_t, uint64_t) {
  const Call call = Values(stack).take_call();
  check(call);
  const std::vector<int64_t> rows{call.q.size(0), call.q.size(1), call.q.size(2)};
  const Tensor out = new_by_token(call.q, call.v.size(3)), lse = new_floats(call.q, rows);
  const Tensor row_sums = new_floats(call.q, call.renormalise ? rows : std::vector<int64_t>{0});
  const std::vector<fovea::Visits> visits = visits_of(call);
  with_type(call.q, [&]<class T>(T) {
    const auto run = [&](auto problem) {
      set_inputs<T>(problem, call, visits);
      problem.out = writable_rows_of<T>(out);
      problem.lse = static_cast<float*>(lse.mutable_data_ptr());
      if constexpr (requires { problem.row_sums; })
        if (call.renormalise) problem.row_sums = static_cast<float*>(row_sums.mutable_data_ptr());
      kernels::cpu().run(problem);
    };
    if (call.joins_pairs()) return run(kernels::MixingForward<T>());
    run(kernels::AttentionForward<T>());
  });
  size_t next = 0;
  for (const Tensor& x : {out, lse, row_sums}) stack[next++] = torch::stable::detail::from(x);
}

// Gradients of the learned operands as the kernels write them; empty where the operand is absent.
std::vector<Tensor> learned_gradients(const Call& call) {
  const int64_t batch = call.q.size(0), heads = call.q.size(1);
  std::vector<Tensor> all;
  for (int n = 0; n < kLearnedSlots; ++n) {
    std::vector<int64_t> sizes{0};
    if (const auto& x = call.slots[n]) {
      sizes = {batch};
      if (n == kTau)
        sizes.insert(sizes.end(), {heads, call.q.size(2)});
      else
        for (int64_t axis = 0; axis < x->dim(); ++axis) sizes.push_back(x->size(axis));
    }
    all.push_back(new_floats(call.q, sizes));
  }
  return all;
}

void backward(StableIValue* stack, uint64_t, uint64_t) {
  Values values(stack);
  const Tensor dout = values.take<Tensor>(), dlse = values.take<Tensor>();
  const Tensor out = values.take<Tensor>(), lse = values.take<Tensor>();
  const Tensor row_sums = values.take<Tensor>();
  const Call call = values.take_call();
  check(call);
  check_rows(dout, "the gradient", call.q);
  const std::vector<Tensor> learned = learned_gradients(call);
  const auto into = [&](Slot slot) {
    return call[slot] ? static_cast<float*>(learned[slot].mutable_data_ptr()) : nullptr;
  };
  const auto data = [](const Tensor& x) { return static_cast<const float*>(x.const_data_ptr()); };
  const Tensor dq = new_by_token(call.q, call.q.size(3)), dk = new_by_token(call.k, call.k.size(3)),
               dv = new_by_token(call.v, call.v.size(3));
  const std::vector<fovea::Visits> visits = visits_of(call);
  with_type(call.q, [&]<class T>(T) {
    const auto run = [&](auto problem) {
      set_inputs<T>(problem, call, visits);
      problem.dout = rows_of<T>(dout);
      problem.lse = data(lse);
      problem.dlse = data(dlse);
      problem.dq = writable_rows_of<T>(dq);
      problem.dk = writable_rows_of<T>(dk);
      problem.dv = writable_rows_of<T>(dv);
      problem.dtau = into(kTau);
      problem.dsink = into(kSinkLogit);
      problem.dbias = into(kBias);
      if constexpr (requires { problem.mixing; }) {
        problem.row_sums = call.renormalise ? data(row_sums) : nullptr;
        problem.dkernel_before = into(kKernelBefore);
        problem.dkernel_after = into(kKernelAfter);
        problem.dmix_before = into(kMixBefore);
        problem.dmix_after = into(kMixAfter);
      } else {
        problem.out = rows_of<T>(out);
      }
      kernels::cpu().run(problem);
    };
    if (call.joins_pairs()) return run(kernels::MixingBackward<T>());
    run(kernels::AttentionBackward<T>());
  });
  size_t next = 0;
  for (const Tensor& x : {dq, dk, dv}) stack[next++] = torch::stable::detail::from(x);
  for (const Tensor& x : learned) stack[next++] = torch::stable::detail::from(x);
}

}  // namespace

STABLE_TORCH_LIBRARY(fovea_kernels, m) {
  const std::string arguments = schema_of_arguments();
  m.def(("attention(" + arguments + ") -> (Tensor out, Tensor lse, Tensor row_sums)").c_str());
  std::string results = "Tensor dq, Tensor dk, Tensor dv";
  for (int n = 0; n < kLearnedSlots; ++n) results += std::string(", Tensor d") + kTable[n].name;
  m.def(("attention_backward(Tensor dout, Tensor dlse, Tensor out, Tensor lse, Tensor row_sums, " +
         arguments + ") -> (" + results + ")")
            .c_str());
}

STABLE_TORCH_LIBRARY_IMPL(fovea_kernels, CPU, m) {
  m.impl("attention", &forward);
  m.impl("attention_backward", &backward);
}
