// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_kernels.h"

#include <deque>
#include <memory>
#include <vector>

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

void reach(MixingRule& mixing) {
  reach(mixing.kernel_before.taps), reach(mixing.kernel_after.taps);
  reach(mixing.mix_before.weights), reach(mixing.mix_after.weights);
}

template <class Problem>
Problem reachable(Problem p) {
  reach(p.rule), reach(p.q), reach(p.k), reach(p.v), reach(p.lse);
  if constexpr (requires { p.out; }) reach(p.out);
  if constexpr (requires { p.out_rest; }) reach(p.out_rest);
  if constexpr (requires { p.mixing; }) reach(p.mixing);
  if constexpr (requires { p.dmix_before; }) {
    reach(p.dkernel_before), reach(p.dkernel_after), reach(p.dmix_before), reach(p.dmix_after);
  }
  if constexpr (requires { p.groups; }) reach(p.groups.members);
  if constexpr (requires { p.dq; }) {
    reach(p.dout), reach(p.dlse), reach(p.dq), reach(p.dk), reach(p.dv);
    if constexpr (requires { p.dtau; }) reach(p.dtau), reach(p.dsink);
    if constexpr (requires { p.dgate_query; }) reach(p.dgate_query), reach(p.dgate_key);
  }
  return p;
}

TokenDraws reachable(TokenDraws draws) {
  reach(draws.logits);
  return draws;
}

void reach(RowNorm& norm) { reach(norm.weight), reach(norm.bias); }
void reach(Projection& p) { reach(p.w.data), reach(p.bias); }

DecoderModel reachable(DecoderModel m) {
  for (DecoderLayer& l : m.layers) {
    for (RowNorm* norm : {&l.attention_in, &l.attention_out, &l.ffn_in, &l.ffn_out}) reach(*norm);
    for (Projection* p : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down}) reach(*p);
    for (const float** x : {&l.q_gain, &l.k_gain, &l.q_length, &l.temperature.weight,
                            &l.temperature.bias, &l.groups.weight, &l.groups.mean,
                            &l.groups.centroids, &l.groups.potentials, &l.groups.scale})
      reach(*x);
    reach(l.rule);
  }
  reach(m.final_norm), reach(m.head);
  return m;
}

/// The decoder of CUDA kernels, whose steps point into memory of the fake device.
class ReachingDecoder final : public Decoder<BFloat16> {
 public:
  explicit ReachingDecoder(DecoderModel model)
      : made_(emulated_backend().make_decoder<BFloat16>(reachable(std::move(model)))) {}

  void run(const DecoderStep<BFloat16>& given) override {
    std::vector<TokenPosition> tokens(given.tokens.begin(), given.tokens.end());
    for (TokenPosition& t : tokens) reach(t.cos), reach(t.sin);
    std::deque<std::vector<SharedRun<BFloat16>>> runs;
    std::deque<std::vector<SequenceCache<BFloat16>>> caches;
    std::deque<std::vector<SequenceStep>> sequences;
    std::vector<DecoderLayerStep<BFloat16>> layers(given.layers.begin(), given.layers.end());
    for (DecoderLayerStep<BFloat16>& layer : layers) {
      for (SequenceCache<BFloat16>& c :
           caches.emplace_back(layer.caches.begin(), layer.caches.end())) {
        reach(c.keys), reach(c.values);
        for (SharedRun<BFloat16>& run : runs.emplace_back(c.shared.begin(), c.shared.end()))
          reach(run.keys), reach(run.values);
        c.shared = runs.back();
      }
      for (SequenceStep& s : sequences.emplace_back(layer.sequences.begin(), layer.sequences.end()))
        reach(s.temperature_sum), reach(s.members);
      layer.caches = caches.back(), layer.sequences = sequences.back();
    }
    DecoderStep<BFloat16> step{
        .tokens = tokens, .layers = layers, .x = given.x, .logits = given.logits};
    reach(step.x), reach(step.logits);
    made_->run(step);
  }

 private:
  const std::unique_ptr<Decoder<BFloat16>> made_;
};

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
  add(static_cast<Kernel<MixingForward<BFloat16>>&>(all));
  add(static_cast<Kernel<MixingBackward<BFloat16>>&>(all));
  add(static_cast<Kernel<TokenDraws>&>(all));
  static_cast<Decoders<BFloat16>&>(all) = {
      .make = [](DecoderModel m) -> std::unique_ptr<Decoder<BFloat16>> {
        return std::make_unique<ReachingDecoder>(std::move(m));
      },
      .why_not =
          [](const DecoderModel& m) { return emulated_backend().why_not_decode<BFloat16>(m); }};
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
