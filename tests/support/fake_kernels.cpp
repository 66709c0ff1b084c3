// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_kernels.h"

#include "tests/support/cuda/emulated_machine.h"
#include "tests/support/fake_device.h"

namespace fovea::testing {
namespace {

using namespace fovea::kernels;

// The addresses of a problem that stand for memory of the device.

template <class T>
void reach(T*& x) {
  x = static_cast<T*>(bytes_behind(x));
}
template <class T>
void reach(HeadRows<T>& x) {
  reach(x.data);
}
void reach(ScoreParameters& rule) {
  reach(rule.tau), reach(rule.alibi), reach(rule.distance_bias), reach(rule.sink_logit);
  reach(rule.gate.query), reach(rule.gate.key);
}

template <class Problem>
Problem reachable(Problem p) {
  reach(p.rule), reach(p.q), reach(p.k), reach(p.v), reach(p.out), reach(p.lse);
  reach(p.out_rest);
  if constexpr (requires { p.groups; }) reach(p.groups.members);
  if constexpr (requires { p.dq; }) {
    reach(p.dout), reach(p.dlse), reach(p.dq), reach(p.dk), reach(p.dv);
    if constexpr (requires { p.dtau; }) reach(p.dtau), reach(p.dsink);
    if constexpr (requires { p.dgate_query; }) reach(p.dgate_query), reach(p.dgate_key);
  }
  return p;
}

Kernels reaching_kernels() {
  Kernels all;
  const auto add = [&all]<class Problem>(Kernel<Problem>& kernel) {
    kernel.run = [](const Problem& p) { emulated_backend().run(reachable(p)); };
    kernel.why_not = [](const Problem& p) { return emulated_backend().why_not(p); };
    kernel.isa = [] { return emulated_backend().isa<Problem>(); };
  };
  add(static_cast<Kernel<AttentionForward<BFloat16>>&>(all));
  add(static_cast<Kernel<AttentionBackward<BFloat16>>&>(all));
  add(static_cast<Kernel<FocusForward<BFloat16>>&>(all));
  add(static_cast<Kernel<FocusBackward<BFloat16>>&>(all));
  return all;
}

class Reaching final : public Backend {
 public:
  Reaching() : Backend(reaching_kernels()) {}
  std::string_view name() const override { return "emulated cuda"; }
  TileSizes tile_sizes() const override { return emulated_backend().tile_sizes(); }
  bool prefers_decode(const AttentionSizes&) const override { return false; }
};

}  // namespace

FakeDeviceKernels::FakeDeviceKernels() {
  static const Reaching backend;
  register_backend(DeviceKind::other, &backend);
}
FakeDeviceKernels::~FakeDeviceKernels() { register_backend(DeviceKind::other, nullptr); }

}  // namespace fovea::testing
