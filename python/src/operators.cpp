// torch.ops.fovea_kernels: the attention kernels as operators of torch's stable ABI, so that one
// library serves every torch from 2.10 on. Gradients and fake kernels are registered in Python
// (python/fovea/_operator.py), which reads the names of the operands from the schema.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <vector>

#include "call.h"
#include "fovea/kernels/backend.h"
#include "pairs.h"

namespace fovea::python {
namespace {

std::string schema_of_arguments() {
  std::string all = std::string("Tensor q, Tensor k, Tensor v, ") + kSettings;
  for (const SlotRow& slot : kTable) all += std::string(", Tensor? ") + slot.name + "=None";
  return all + ", " + kOtherSettings;
}

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
    call.causal = take<bool>();
    call.scale = take<double>();
    call.soft_cap = take<double>();
    call.window = take<int64_t>();
    call.sinks = take<int64_t>();
    for (std::optional<Tensor>& slot : call.slots) slot = take<std::optional<Tensor>>();
    call.bias_first = take<int64_t>();
    call.eq4 = take<bool>();
    call.renormalise = take<bool>();
    call.gate = take<int64_t>();
    call.gate_offset = take<double>();
    call.gate_learned = take<bool>();
    call.near = take<int64_t>();
    call.near_sinks = take<int64_t>();
    call.groups = take<int64_t>();
    call.block_size = take<int64_t>();
    call.stats = take<bool>();
    return call;
  }

 private:
  const StableIValue* next_;
};

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

kernels::PairGate pair_gate(const Call& call) {
  using Form = kernels::PairGate::Form;
  kernels::PairGate gate;
  if (!call[kGateQuery]) return gate;
  constexpr Form kForms[] = {Form::none, Form::weight, Form::capped_weight, Form::sigmoid_weight,
                             Form::sigmoid_logit};
  const Tensor &query = *call[kGateQuery], &key = *call[kGateKey];
  gate = {.form = kForms[call.gate],
          .offset = static_cast<float>(call.gate_offset),
          .window = call.near,
          .sinks = call.near_sinks,
          .columns = query.size(2),
          .query = static_cast<const float*>(query.const_data_ptr()),
          .key = static_cast<const float*>(key.const_data_ptr()),
          .query_batch = query.stride(0),
          .key_batch = key.stride(0)};
  // Agreements are not negative, so only the threshold makes z small: the last column of a learned
  // strength.
  if (gate.form == Form::sigmoid_weight)
    gate.least =
        call.gate_learned && query.numel() > 0 ? gate.query[gate.columns - 1] : gate.offset;
  return gate;
}

kernels::MemberMask member_mask(const Call& call) {
  if (!call[kMembers]) return {};
  const int64_t queries = call.q.size(2), keys = call.k.size(2);
  const auto* bits = static_cast<const int64_t*>(call[kMembers]->const_data_ptr());
  return {.query = bits + (keys - queries),
          .key = bits,
          .query_batch = keys,
          .key_batch = keys,
          .window = call.near,
          .sinks = call.near_sinks};
}

kernels::ScoreParameters score_parameters(const Call& call) {
  return {.scale = static_cast<float>(call.scale),
          .tau = floats(call[kTau]),
          .soft_cap = static_cast<float>(call.soft_cap),
          .alibi = floats(call[kAlibi]),
          .distance_bias = floats(call[kBias]),
          .bias_first = call.bias_first,
          .bias_count = call[kBias] ? call[kBias]->size(1) : 0,
          .sink_logit = floats(call[kSinkLogit]),
          .gate = pair_gate(call)};
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
void set_inputs(Problem& problem, const Call& call, const Pairs& pairs) {
  const Tensor &q = call.q, &k = call.k, &v = call.v;
  problem.sizes = {.batch = q.size(0),
                   .heads = q.size(1),
                   .kv_heads = k.size(1),
                   .queries = q.size(2),
                   .keys = k.size(2),
                   .head_dim = q.size(3),
                   .value_dim = v.size(3)};
  problem.rule = score_parameters(call);
  problem.q = rows_of<T>(q);
  problem.k = rows_of<T>(k);
  problem.v = rows_of<T>(v);
  if constexpr (requires { problem.plans; })
    problem.plans = pairs.plans;
  else if constexpr (requires { problem.rows; })
    problem.rows = pairs.rows;
  else
    problem.visits = pairs.visits;
  if constexpr (requires { problem.mixing; }) {
    problem.mixing = mixing_rule(call);
    problem.members = member_mask(call);
  }
}

template <class F>
void with_type(const Tensor& x, const F& f) {
  if (x.scalar_type() == ScalarType::Float) return f(0.0f);
  require<UnsupportedError>(x.scalar_type() == ScalarType::BFloat16, "fovea.attention",
                            "expected q, k and v in float32 or bfloat16; convert them by .float()");
  f(BFloat16{});
}

// By the C function: an operator by name costs a microsecond each time.
Tensor new_tensor(std::span<const int64_t> sizes, std::span<const int64_t> strides, int32_t dtype) {
  AtenTensorHandle made = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(),
                                                  strides.data(), dtype,
                                                  aoti_torch_device_type_cpu(), 0, &made));
  return Tensor(made);
}

// [b, h, t, width] in the memory order of [b, t, h, width].
Tensor new_by_token(const Tensor& like, int64_t width) {
  const int64_t h = like.size(1), t = like.size(2);
  const std::array<int64_t, 4> sizes{like.size(0), h, t, width};
  const std::array<int64_t, 4> strides{t * h * width, width, h * width, 1};
  int32_t dtype = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(like.get(), &dtype));
  return new_tensor(sizes, strides, dtype);
}

Tensor new_floats(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t axis = sizes.size(); axis-- > 1;)
    strides[axis - 1] = strides[axis] * std::max<int64_t>(sizes[axis], 1);
  return new_tensor(sizes, strides, aoti_torch_dtype_float32());
}

void forward(StableIValue* stack, uint64_t, uint64_t) {
  const Call call = Values(stack).take_call();
  check(call);
  const std::vector<int64_t> rows{call.q.size(0), call.q.size(1), call.q.size(2)};
  const Tensor out = new_by_token(call.q, call.v.size(3)), lse = new_floats(rows);
  const Tensor row_sums = new_floats(call.renormalise ? rows : std::vector<int64_t>{0});
  const Tensor stats =
      new_floats(call.stats ? std::vector<int64_t>{rows[0], rows[1], rows[2], kernels::kRowStats}
                            : std::vector<int64_t>{0});
  const Pairs pairs(call, true);
  with_type(call.q, [&]<class T>(T) {
    const auto run = [&](auto problem) {
      set_inputs<T>(problem, call, pairs);
      problem.out = writable_rows_of<T>(out);
      problem.lse = static_cast<float*>(lse.mutable_data_ptr());
      if constexpr (requires { problem.row_sums; }) {
        expect(!call.stats, "statistics of joined pairs have no kernel");
        if (call.renormalise) problem.row_sums = static_cast<float*>(row_sums.mutable_data_ptr());
      } else if constexpr (requires { problem.stats; }) {
        if (call.stats) problem.stats = static_cast<float*>(stats.mutable_data_ptr());
      }
      kernels::cpu().run(problem);
    };
    if (!pairs.plans.empty()) return run(kernels::GroupedForward<T>());
    if (!pairs.rows.empty()) return run(kernels::AttentionDecode<T>());
    if (call.joins_pairs() || call[kMembers]) return run(kernels::MixingForward<T>());
    run(kernels::AttentionForward<T>());
  });
  size_t next = 0;
  for (const Tensor& x : {out, lse, row_sums, stats})
    stack[next++] = torch::stable::detail::from(x);
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
      else if (n == kGateQuery || n == kGateKey)
        sizes = {batch, x->size(1), x->size(2)};
      else
        for (int64_t axis = 0; axis < x->dim(); ++axis) sizes.push_back(x->size(axis));
    }
    all.push_back(new_floats(sizes));
  }
  return all;
}

// The gradient of one factor of the gate: kernels of plain attention write it for every head.
class GateGradient {
 public:
  GateGradient(const Call& call, Slot slot, int64_t heads, const Tensor& out) : heads_(heads) {
    if (!call[slot]) return;
    out_ = static_cast<float*>(out.mutable_data_ptr());
    batch_ = out.size(0), count_ = out.size(1) * out.size(2);
    if (heads > 1) of_heads_.resize(static_cast<size_t>(batch_ * heads * count_));
  }
  float* data() { return of_heads_.empty() ? out_ : of_heads_.data(); }
  void sum() {
    if (of_heads_.empty()) return;
    for (int64_t b = 0; b < batch_; ++b) {
      float* const to = out_ + b * count_;
      std::fill(to, to + count_, 0.0f);
      for (int64_t h = 0; h < heads_; ++h) {
        const float* from = of_heads_.data() + (b * heads_ + h) * count_;
        for (int64_t n = 0; n < count_; ++n) to[n] += from[n];
      }
    }
  }

 private:
  int64_t heads_, batch_ = 0, count_ = 0;
  float* out_ = nullptr;
  std::vector<float> of_heads_;
};

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
  const Pairs pairs(call, false);
  with_type(call.q, [&]<class T>(T) {
    const auto run = [&](auto problem) {
      set_inputs<T>(problem, call, pairs);
      problem.dout = rows_of<T>(dout);
      problem.lse = data(lse);
      problem.dlse = data(dlse);
      problem.dq = writable_rows_of<T>(dq);
      problem.dk = writable_rows_of<T>(dk);
      problem.dv = writable_rows_of<T>(dv);
      problem.dtau = into(kTau);
      problem.dsink = into(kSinkLogit);
      constexpr bool joins = requires { problem.mixing; };
      GateGradient of_queries(call, kGateQuery, joins ? 1 : call.q.size(1), learned[kGateQuery]),
          of_keys(call, kGateKey, joins ? 1 : call.k.size(1), learned[kGateKey]);
      if constexpr (requires { problem.dbias; }) {
        problem.dbias = into(kBias);
        problem.dgate_query = of_queries.data();
        problem.dgate_key = of_keys.data();
      }
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
      of_queries.sum();
      of_keys.sum();
    };
    if (!pairs.plans.empty()) return run(kernels::GroupedBackward<T>());
    if (call.joins_pairs() || call[kMembers]) return run(kernels::MixingBackward<T>());
    run(kernels::AttentionBackward<T>());
  });
  size_t next = 0;
  for (const Tensor& x : {dq, dk, dv}) stack[next++] = torch::stable::detail::from(x);
  for (const Tensor& x : learned) stack[next++] = torch::stable::detail::from(x);
}

}  // namespace

STABLE_TORCH_LIBRARY(fovea_kernels, m) {
  const std::string arguments = schema_of_arguments();
  m.def(("attention(" + arguments + ") -> (Tensor out, Tensor lse, Tensor row_sums, Tensor stats)")
            .c_str());
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

}  // namespace fovea::python
