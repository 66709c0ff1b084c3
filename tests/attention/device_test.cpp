// Every device gives the numbers of the float64 reference on the CPU. Machines without a GPU check
// the CPU alone.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "fovea/attention/attention.h"
#include "fovea/attention/mechanisms/focal.h"
#include "fovea/attention/positions/rope.h"
#include "fovea/runtime/own_kernels.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/devices.h"
#include "tests/support/gradcheck.h"
#ifdef FOVEA_FAKE_KERNELS
#include "tests/support/fake_kernels.h"
#endif

namespace fovea::device_test {
namespace {

using namespace fovea::testing;

AttentionInputs moved(const AttentionInputs& in, at::Device device) {
  const auto move = [&](const at::Tensor& x) {
    if (!x.defined()) return x;
    return x.is_floating_point() ? x.detach().to(device, at::kFloat).set_requires_grad(true)
                                 : x.to(device);
  };
  AttentionInputs there{move(in.q), move(in.k), move(in.v), in.tensors};
  for (const auto& [name, x] : there.tensors.named()) *x = move(*x);
  return there;
}

TEST(Device, AttentionAndItsGradientsAreTheSameEverywhere) {
#ifdef FOVEA_FAKE_KERNELS
  const FakeDeviceKernels kernels;  // which take few of these problems
#endif
  for (const at::Device device : all_devices()) {
    for (const auto& [name, spec] : all_specs()) {
      for (const bool packed : {false, true}) {
        const AttentionContext context = packed ? packed_context({40, 30}) : AttentionContext{};
        const AttentionInputs wide = random_inputs(spec, 2, 70).with_gradient(),
                              in = moved(wide, device);
        const at::Tensor truth =
            reference_attention(spec, wide.q, wide.k, wide.v, wide.tensors, context).out_bhte;
        const at::Tensor out = attention(spec, in.q, in.k, in.v, in.tensors, context).out_bhte;
        EXPECT_LT(relative_error(out.cpu(), truth), 1e-5) << name << " on " << device;
        const at::Tensor weights = random_normal(truth.sizes(), 3);
        const auto expected = gradients((truth * weights).sum(), wide.leaves());
        const auto got = gradients((out * weights.to(device, at::kFloat)).sum(), in.leaves());
        for (size_t n = 0; n < got.size(); ++n)
          EXPECT_LT(relative_error(got[n].cpu(), expected[n]), 1e-4) << name << " gradient " << n;
      }
    }
  }
}

TEST(Device, RopeAndTemperatureAreTheSameEverywhere) {
  const at::Tensor x = random_normal({2, 3, 9, 8}, 1), positions = at::arange(9, at::kLong);
  const at::Tensor turned =
      apply_rope(x, make_rope_table({}, 8, 9, at::kCPU, at::kDouble), positions);
  TemperatureSpec spec;
  spec.kind = TemperatureSpec::Kind::learned;
  const at::Tensor input = random_normal({2, 9, 8}, 2), weight = random_normal({8}, 3, 0.1),
                   bias = at::full({}, 1.9, at::kDouble);
  const AttentionContext context = packed_context({4, 5});
  const at::Tensor tau = temperature_rows(spec, 8, {weight, bias}, input, context).tau_bt;
  for (const at::Device device : all_devices()) {
    const RopeTable table = make_rope_table({}, 8, 9, device);
    EXPECT_LT(relative_error(
                  apply_rope(x.to(device, at::kFloat), table, positions.to(device)).cpu(), turned),
              1e-5);
    const auto single = [&](const at::Tensor& y) { return y.to(device, at::kFloat); };
    EXPECT_LT(relative_error(
                  temperature_rows(spec, 8, {single(weight), single(bias)}, single(input), context)
                      .tau_bt.cpu(),
                  tau),
              1e-6);
  }
  // What a GPU would compute, on the CPU: means of documents, their continuation and gradients.
  for (const auto form : {TemperatureSpec::Form::prefix, TemperatureSpec::Form::sequence}) {
    spec.form = form;
    const auto run = [&] {
      at::Tensor w = weight.detach().clone().set_requires_grad(true);
      const at::Tensor rows = temperature_rows(spec, 8, {w, bias}, input, context).tau_bt;
      const auto grads = gradients((rows * rows).sum(), {w});
      return std::pair{rows.detach(), grads[0]};
    };
    const auto expected = run();
    const WithoutOwnKernels by_operations;
    const auto got = run();
    EXPECT_LT(relative_error(got.first, expected.first), 1e-12);
    EXPECT_LT(relative_error(got.second, expected.second), 1e-12);
  }
}

TEST(Device, APrefixMeanGoesOnFromItsStateByOperations) {
  TemperatureSpec spec;
  spec.kind = TemperatureSpec::Kind::learned;
  const at::Tensor input = random_normal({2, 9, 8}, 2), weight = random_normal({8}, 3, 0.1),
                   bias = at::full({}, 1.9, at::kDouble);
  const at::Tensor whole = temperature_rows(spec, 8, {weight, bias}, input, {}).tau_bt;
  const WithoutOwnKernels by_operations;
  TemperatureState state{.sum_b = at::zeros({2}, at::kDouble),
                         .count_b = at::zeros({2}, at::kLong)};
  std::vector<at::Tensor> parts;
  for (const auto& [begin, count] : {std::pair{0, 4}, {4, 1}, {5, 4}})
    parts.push_back(
        temperature_rows(spec, 8, {weight, bias}, input.narrow(1, begin, count), {}, &state)
            .tau_bt);
  EXPECT_LT(relative_error(at::cat(parts, 1), whole), 1e-12);
}

}  // namespace
}  // namespace fovea::device_test
