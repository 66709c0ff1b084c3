// Attention in bfloat16 at the widths that a GPU has kernels for, on every device: as close to the
// float64 reference as tensor operations in bfloat16 are, twice at most. The fake device has the
// CUDA kernels, emulated.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "fovea/attention/attention.h"
#include "fovea/attention/cuda_library.h"
#include "fovea/kernels/common/pair_products.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/devices.h"
#include "tests/support/gradcheck.h"
#ifdef FOVEA_FAKE_DEVICE
#include "tests/support/fake_kernels.h"
#endif

namespace fovea::device_kernels_test {
namespace {

using namespace fovea::testing;

struct Named {
  std::string name;
  AttentionSpec spec;
  AttentionContext context;
  double tau_factor = 1.0;
  int64_t batch = 2, tokens = 150;
};

std::vector<Named> settings() {
  AttentionSpec plain;
  plain.heads = 4, plain.kv_heads = 2, plain.head_dim = 64;
  std::vector<Named> all;
  const auto add = [&](const char* name, auto change) {
    all.push_back({name, plain, {}});
    change(all.back());
  };
  const auto focus = [](Named& n, int64_t top_k) {
    n.spec.focus.gate = FocusSpec::Gate::hard;
    n.spec.focus.groups = 8, n.spec.focus.top_k = top_k;
    n.spec.focus.window = 20, n.spec.focus.sinks = 3;
  };
  add("causal", [](Named&) {});
  add("full", [](Named& n) { n.spec.mask.causal = false; });
  add("window", [](Named& n) { n.spec.mask.window = 30; });
  add("documents", [](Named& n) { n.context = packed_context({90, 60}); });
  add("temperature", [](Named& n) { n.spec.temperature.kind = TemperatureSpec::Kind::learned; });
  add("sharp temperature", [](Named& n) {
    n.spec.temperature.kind = TemperatureSpec::Kind::learned;
    n.tau_factor = 0.125;
  });
  add("soft-cap", [](Named& n) { n.spec.soft_cap = 2.0; });
  add("alibi", [](Named& n) { n.spec.bias.kind = BiasSpec::Kind::alibi; });
  add("everything", [](Named& n) {
    n.spec.temperature.kind = TemperatureSpec::Kind::learned;
    n.spec.bias.kind = BiasSpec::Kind::alibi;
    n.spec.soft_cap = 2.0, n.spec.sink_logit = true;
    n.spec.mask.window = 30, n.spec.mask.sinks = 2;
    n.context = packed_context({90, 60});
  });
  const auto convolved = [](Named& n, KernelExtent before, KernelExtent after) {
    n.tokens = 75, n.batch = 1;
    n.spec.multi_token.before = before, n.spec.multi_token.after = after;
  };
  const auto mixed = [](Named& n, HeadMixSpec::Kind before, HeadMixSpec::Kind after) {
    n.tokens = 75, n.batch = 1;
    n.spec.head_mix.before = before, n.spec.head_mix.after = after;
    if (before == HeadMixSpec::Kind::groups || after == HeadMixSpec::Kind::groups)
      n.spec.head_mix.group = 2;
  };
  using Kind = HeadMixSpec::Kind;
  add("convolutions", [&](Named& n) { convolved(n, {6, 11}, {6, 11}); });
  add("a convolution before, documents", [&](Named& n) {
    convolved(n, {3, 4}, {});
    n.context = packed_context({40, 35});
  });
  add("talking heads", [&](Named& n) { mixed(n, Kind::full, Kind::full); });
  add("groups of heads after, documents", [&](Named& n) {
    mixed(n, Kind::none, Kind::groups);
    n.context = packed_context({40, 35});
  });
  add("Multi-Token, documents", [&](Named& n) {
    mixed(n, Kind::groups, Kind::groups);
    convolved(n, {6, 11}, {4, 5});
    n.context = packed_context({40, 35});
  });
  for (const auto gate : {FocusSpec::Gate::log, FocusSpec::Gate::logsig, FocusSpec::Gate::mul})
    add("soft Focus", [&](Named& n) {
      focus(n, 1);
      n.spec.focus.gate = gate, n.spec.focus.learned_strength = false;
      n.name += " " + std::string(enum_name(gate));
    });
  add("soft Focus, learned strength and temperature, documents", [&](Named& n) {
    focus(n, 1);
    n.spec.focus.gate = FocusSpec::Gate::logsig;
    n.spec.focus.learned_strength = true;
    n.spec.temperature.kind = TemperatureSpec::Kind::learned;
    n.context = packed_context({90, 60});
  });
  add("hard Focus", [&](Named& n) { focus(n, 1); });
  add("hard Focus, two groups a token", [&](Named& n) { focus(n, 2); });
  return all;
}

// Output and gradients of every tensor.
std::vector<at::Tensor> results(const Named& n, const AttentionInputs& in, Path path) {
  const at::Tensor out = attention(n.spec, in.q, in.k, in.v, in.tensors, n.context, path).out_bhte;
  const at::Tensor weights = random_normal(out.sizes(), 3).to(out.device(), out.scalar_type());
  std::vector<at::Tensor> all{out.detach()};
  for (at::Tensor& g : gradients((out * weights).to(at::kFloat).sum(), in.leaves()))
    all.push_back(std::move(g));
  return all;
}

AttentionInputs moved(const AttentionInputs& in, at::Device device, at::ScalarType dtype) {
  const auto move = [&](const at::Tensor& x) {
    if (!x.defined()) return x;
    return x.is_floating_point() ? x.detach().to(device, dtype).clone().set_requires_grad(true)
                                 : x.to(device);
  };
  AttentionInputs there{move(in.q), move(in.k), move(in.v), in.tensors};
  for (const auto& [name, x] : there.tensors.named()) *x = move(*x);
  return there;
}

// Whether our kernels of a device other than the CPU are there to be used.
bool has_device_kernels() {
#ifdef FOVEA_FAKE_DEVICE
  return true;
#else
  return best_device.is_cuda() && why_no_cuda_kernels().empty();
#endif
}

class DeviceKernels : public ::testing::Test {
#ifdef FOVEA_FAKE_DEVICE
  const FakeDeviceKernels kernels_;
#endif
};

TEST_F(DeviceKernels, BFloat16IsAsCloseToTheTruthAsTensorOperations) {
  for (const Named& n : settings()) {
    AttentionInputs given = random_inputs(n.spec, n.batch, n.tokens);
    if (given.tensors.tau_bt.defined()) given.tensors.tau_bt = given.tensors.tau_bt * n.tau_factor;
    const AttentionInputs rounded = moved(given, at::kCPU, at::kBFloat16);
    const std::vector<at::Tensor> truth =
        results(n, moved(rounded, at::kCPU, at::kDouble), Path::reference);
    const std::vector<at::Tensor> operations = results(n, rounded, Path::reference);
    for (const at::Device device : all_devices()) {
      const std::vector<at::Tensor> got =
          results(n, moved(rounded, device, at::kBFloat16), Path::automatic);
      // The operations here convolve in float32; a CPU that multiplies pairs rounds the logits.
      const bool rounds =
          device.is_cpu() && multiplies_pairs() && n.spec.multi_token.before.active();
      const double more = rounds ? 4e-3 : 1e-3;
      for (size_t x = 0; x < got.size(); ++x)
        EXPECT_LT(relative_error(got[x].cpu(), truth[x]),
                  2.0 * relative_error(operations[x], truth[x]) + more)
            << n.name << " on " << device << ", result " << x;
    }
  }
}

TEST_F(DeviceKernels, RunWhereADeviceHasThem) {
  if (!has_device_kernels()) {
    EXPECT_FALSE(why_no_cuda_kernels().empty());
    return;
  }
  const at::Device device = all_devices().back();
  for (const Named& n : settings()) {
    if (n.name == "full") continue;  // a build may lack it
    const AttentionInputs in =
        moved(random_inputs(n.spec, n.batch, n.tokens), device, at::kBFloat16);
    const AttentionResult result = attention(n.spec, in.q, in.k, in.v, in.tensors, n.context);
    const bool hard = n.spec.focus.gate == FocusSpec::Gate::hard;
    const PathName ours = hard ? PathName::grouped : PathName::fused;
    EXPECT_EQ(result.path.name, ours) << n.name << ": " << result.path.reason.text();
  }
}

TEST_F(DeviceKernels, WhatTheMixingKernelsLackRunsByTensorOperations) {
  const at::Device device = all_devices().back();
  if (device.is_cpu()) return;
  AttentionSpec spec;
  spec.heads = 2, spec.kv_heads = 1, spec.head_dim = 64;
  spec.multi_token.before = {6, 11};
  AttentionSpec tempered = spec, windowed = spec, long_kernel = spec;
  tempered.temperature.kind = TemperatureSpec::Kind::learned;
  windowed.mask.window = 20;
  long_kernel.multi_token.after = {8, 3};
  for (const AttentionSpec& lacking : {tempered, windowed, long_kernel}) {
    const AttentionInputs in = moved(random_inputs(lacking, 1, 40), device, at::kBFloat16);
    const AttentionResult result = attention(lacking, in.q, in.k, in.v, in.tensors);
    EXPECT_NE(result.path.name, PathName::fused);
    EXPECT_TRUE(at::isfinite(result.out_bhte).all().item<bool>());
  }
}

}  // namespace
}  // namespace fovea::device_kernels_test
