// torch.ops.fovea_kernels: the attention kernels as operators of torch's stable ABI, so that one
// library serves every torch from 2.10 on. Gradients and fake kernels are registered in Python
// (python/fovea/_operator.py), which reads the names of the operands from the schema.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "call.h"
#include "device.h"
#include "pairs.h"
#include "problem.h"

namespace fovea::python {
namespace {

// How an error begins that tells of a call without CUDA kernels; python/fovea/_operator.py reads
// it.
constexpr const char* kRefused = "the CUDA kernels lack this call";

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
    call.most_groups = take<int64_t>();
    call.block_size = take<int64_t>();
    call.stats = take<bool>();
    call.mask_stride = take<int64_t>();
    call.mask_block = take<int64_t>();
    call.mask_summary = take<int64_t>();
    call.dropout = take<double>();
    call.dropout_layer = take<int64_t>();
    return call;
  }

 private:
  const StableIValue* next_;
};

// A call whose operands lie as the kernels of its device read them.
Call readable(Call call) {
  check(call);
  if (call.q.is_cpu()) return call;
  for (Tensor* x : {&call.q, &call.k, &call.v}) *x = readable_rows(*x);
  for (int n = kQueryPositions; n <= kKeyDocuments; ++n)
    if (call.slots[n]) call.slots[n] = on_host(*call.slots[n]);
  return call;
}

// Makes the GPU of q the current one; nothing for the CPU.
std::optional<torch::stable::accelerator::DeviceGuard> at_device_of(const Tensor& q) {
  if (q.is_cpu()) return std::nullopt;
  return std::optional<torch::stable::accelerator::DeviceGuard>(std::in_place,
                                                                q.get_device_index());
}

void forward(StableIValue* stack, uint64_t, uint64_t) {
  Call given = Values(stack).take_call();
  const auto guard = at_device_of(given.q);
  const Call call = readable(std::move(given));
  const kernels::Backend& backend = backend_for(call.q);
  const Pairs pairs(call, backend, true);
  if (!call.q.is_cpu())
    if (const auto why = why_not_cuda(call, pairs, backend))
      fail<UnsupportedError>("fovea.attention", "{}: {}", kRefused, *why);
  const std::vector<int64_t> rows{call.q.size(0), call.q.size(1), call.q.size(2)};
  const Tensor out = new_by_token(call.q, call.v.size(3)), lse = new_floats(rows, call.q);
  const Tensor row_sums = new_floats(call.renormalise ? rows : std::vector<int64_t>{0}, call.q);
  const Tensor stats =
      new_floats(call.stats ? std::vector<int64_t>{rows[0], rows[1], rows[2], kernels::kRowStats}
                            : std::vector<int64_t>{0},
                 call.q);
  with_type(call.q, [&]<class T>(T) {
    with_forward<T>(family_of(call, pairs), [&](auto problem) {
      set_inputs<T>(problem, call, pairs);
      problem.out = writable_rows_of<T>(out);
      problem.lse = static_cast<float*>(lse.mutable_data_ptr());
      if constexpr (requires { problem.row_sums; }) {
        expect(!call.stats, "statistics of joined pairs have no kernel");
        if (call.renormalise) problem.row_sums = static_cast<float*>(row_sums.mutable_data_ptr());
      } else if constexpr (requires { problem.stats; }) {
        if (call.stats) problem.stats = static_cast<float*>(stats.mutable_data_ptr());
      }
      backend.run(problem);
    });
  });
  size_t next = 0;
  for (const Tensor& x : {out, lse, row_sums, stats})
    stack[next++] = torch::stable::detail::from(x);
}

// Gradients of the learned operands as the kernels write them; empty where the operand is absent.
std::vector<Tensor> learned_gradients(const Call& call) {
  const int64_t batch = call.q.size(0);
  std::vector<Tensor> all;
  for (int n = 0; n < kLearnedSlots; ++n) {
    std::vector<int64_t> sizes{0};
    if (const auto& x = call.slots[n]) {
      sizes = {batch};
      if (n == kTau) sizes.insert(sizes.end(), {call.q.size(1), call.q.size(2)});
      if (n == kGateQuery || n == kGateKey) {
        if (!call.joins_pairs()) sizes.push_back(n == kGateQuery ? call.q.size(1) : call.k.size(1));
        sizes.insert(sizes.end(), {x->size(1), x->size(2)});
      }
      for (int64_t axis = 0; n < kGateQuery && n != kTau && axis < x->dim(); ++axis)
        sizes.push_back(x->size(axis));
    }
    all.push_back(new_floats(sizes, call.q));
  }
  return all;
}

void backward(StableIValue* stack, uint64_t, uint64_t) {
  Values values(stack);
  Tensor dout = values.take<Tensor>();
  const Tensor dlse = values.take<Tensor>();
  Tensor out = values.take<Tensor>();
  const Tensor lse = values.take<Tensor>(), row_sums = values.take<Tensor>();
  Call given = values.take_call();
  const auto guard = at_device_of(given.q);
  const Call call = readable(std::move(given));
  check_rows(dout, "the gradient", call.q);
  dout = readable_rows(dout), out = readable_rows(out);
  const std::vector<Tensor> learned = learned_gradients(call);
  const auto into = [&](Slot slot) {
    return call[slot] ? static_cast<float*>(learned[slot].mutable_data_ptr()) : nullptr;
  };
  const auto data = [](const Tensor& x) { return static_cast<const float*>(x.const_data_ptr()); };
  const Tensor dq = new_by_token(call.q, call.q.size(3)), dk = new_by_token(call.k, call.k.size(3)),
               dv = new_by_token(call.v, call.v.size(3));
  const kernels::Backend& backend = backend_for(call.q);
  const Pairs pairs(call, backend, false);
  with_type(call.q, [&]<class T>(T) {
    with_backward<T>(family_of(call, pairs), [&](auto problem) {
      set_inputs<T>(problem, call, pairs);
      problem.dout = rows_of<T>(dout);
      problem.lse = data(lse);
      problem.dlse = data(dlse);
      problem.dq = writable_rows_of<T>(dq);
      problem.dk = writable_rows_of<T>(dk);
      problem.dv = writable_rows_of<T>(dv);
      if constexpr (requires { problem.dtau; }) {
        problem.dtau = into(kTau);
        problem.dsink = into(kSinkLogit);
      }
      if constexpr (requires { problem.dbias; }) {
        problem.dbias = into(kBias);
        problem.dgate_query = into(kGateQuery);
        problem.dgate_key = into(kGateKey);
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
      backend.run(problem);
    });
  });
  size_t next = 0;
  for (const Tensor& x : {dq, dk, dv}) stack[next++] = torch::stable::detail::from(x);
  for (const Tensor& x : learned) stack[next++] = torch::stable::detail::from(x);
}

void why_not_cuda_kernels(StableIValue* stack, uint64_t, uint64_t) {
  Values values(stack);
  const torch::stable::accelerator::DeviceGuard guard(static_cast<int32_t>(values.take<int64_t>()));
  stack[0] = torch::stable::detail::from(answer(values.take_call()));
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
  m.def(("why_not_cuda(int device, " + arguments + ") -> str").c_str());
}

STABLE_TORCH_LIBRARY_IMPL(fovea_kernels, CPU, m) {
  m.impl("attention", &forward);
  m.impl("attention_backward", &backward);
}

STABLE_TORCH_LIBRARY_IMPL(fovea_kernels, CUDA, m) {
  m.impl("attention", &forward);
  m.impl("attention_backward", &backward);
}

STABLE_TORCH_LIBRARY_IMPL(fovea_kernels, Meta, m) { m.impl("why_not_cuda", &why_not_cuda_kernels); }

}  // namespace fovea::python
