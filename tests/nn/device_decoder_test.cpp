// The compiled decoder of every device in bfloat16: as close to the float64 numbers as the layers'
// own operations in bfloat16 are, twice at most. The fake device has the CUDA decoder, emulated.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fovea/nn/transformer.h"
#include "tests/support/decoder_settings.h"
#include "tests/support/devices.h"
#include "tests/support/gradcheck.h"
#ifdef FOVEA_FAKE_DEVICE
#include "tests/support/fake_kernels.h"
#endif

namespace fovea::device_decoder_test {
namespace {

using namespace decoder_settings;
using testing::all_devices;
using testing::relative_error;

class DeviceDecoder : public ::testing::Test {
#ifdef FOVEA_FAKE_DEVICE
  const testing::FakeDeviceKernels kernels_;
#endif
};

/// The same model elsewhere. Numbers are rounded, so that bfloat16 holds them.
Transformer moved(const Transformer& model, at::Device device, at::ScalarType dtype) {
  Transformer there(model.config(), 3, device);
  const at::NoGradGuard no_grad;
  for (Parameter& p : there.parameters().all())
    p.value.copy_(model.parameters().find(p.name)->value.to(at::kBFloat16));
  there.compute().dtype = dtype;
  if (dtype == at::kBFloat16) there.hold_matrices_in(dtype);
  return there;
}

struct Decoded {
  at::Tensor logits;  ///< of the last `single` tokens, float64 on the CPU
  PathName path = PathName::reference;
};

/// Reads all tokens but the last `single`, and those one by one.
Decoded decode(const Transformer& model, const at::Tensor& ids, int64_t single) {
  const at::NoGradGuard no_grad;
  const at::Tensor there = ids.to(model.device());
  const int64_t length = ids.size(1);
  DecodeState state = model.make_decode_state(ids.size(0), length);
  model.decode(there.narrow(1, 0, length - single), state);
  std::vector<at::Tensor> all;
  for (int64_t i = length - single; i < length; ++i)
    all.push_back(model.decode(there.narrow(1, i, 1), state, true));
  return {at::cat(all, 1).cpu().to(at::kDouble), state.path.name};
}

ModelConfig wide() {
  ModelConfig c{.layers = 2, .width = 64, .heads = 9, .kv_heads = 3, .head_dim = 64};
  c.ffn_width = 88;
  c.context = 400;
  return c;
}

at::Tensor random_tokens(int64_t b, int64_t t) {
  return at::randint(0, kVocab, {b, t}, at::detail::createCPUGenerator(5),
                     at::TensorOptions(at::kLong));
}

// Devices other than the CPU with a compiled decoder for the model.
int64_t expect_close(const std::string& name, const ModelConfig& config, const at::Tensor& ids) {
  SCOPED_TRACE(name);
  const Transformer model = make(config, at::kDouble);
  const at::Tensor truth = decode(moved(model, at::kCPU, at::kDouble), ids, 1).logits;
  Transformer by_layers = moved(model, at::kCPU, at::kBFloat16);
  by_layers.compute().fused_decoder = false;
  const double of_layers = relative_error(decode(by_layers, ids, 1).logits, truth);
  int64_t compiled = 0;
  for (const at::Device device : all_devices()) {
    const Transformer there = moved(model, device, at::kBFloat16);
    if (there.why_no_fused_decoder()) continue;
    const Decoded got = decode(there, ids, 1);
    EXPECT_EQ(got.path, PathName::fused_decoder);
    EXPECT_LT(relative_error(got.logits, truth), 2.0 * of_layers + 1e-3) << device;
    compiled += !device.is_cpu();
  }
  return compiled;
}

TEST_F(DeviceDecoder, IsAsCloseToTheTruthAsLayersInBFloat16) {
  int64_t compiled = 0;
  for (const auto& [name, config] : options()) compiled += expect_close(name, config, tokens(2));
#ifdef FOVEA_FAKE_DEVICE
  EXPECT_GE(compiled, 30);
#endif
}

TEST_F(DeviceDecoder, SplitsLongTextsAndTakesManyHeadsAKeyHead) {
  std::vector<Named> all{{"plain", wide()}};
  const auto add = [&](const char* name, auto set) {
    ModelConfig c = wide();
    set(c, c.attention.spec);
    all.emplace_back(name, c);
  };
  add("window", [](ModelConfig&, AttentionSpec& s) { s.mask.window = 100; });
  add("learned temperature, sink logit, soft-cap", [](ModelConfig&, AttentionSpec& s) {
    s.temperature.kind = TemperatureSpec::Kind::learned;
    s.sink_logit = true;
    s.soft_cap = 5.0;
  });
  for (const int64_t top_k : {1, 2}) {
    add("hard Focus", [top_k](ModelConfig&, AttentionSpec& s) {
      s.focus = hard_focus();
      s.focus.groups = 6, s.focus.top_k = top_k, s.focus.window = 20, s.focus.sinks = 3;
    });
  }
  add("hard Focus in a window, learned temperature", [](ModelConfig& c, AttentionSpec& s) {
    c.attention.focus.windowed_layers = true;
    s.focus = hard_focus();
    s.temperature.kind = TemperatureSpec::Kind::learned;
    s.mask.window = 120;
  });
  add("alibi", [](ModelConfig& c, AttentionSpec& s) {
    c.positions = Positions::none;
    s.bias.kind = BiasSpec::Kind::alibi;
  });
  add("one key head, heads of 128",
      [](ModelConfig& c, AttentionSpec&) { c.heads = 6, c.kv_heads = 1, c.head_dim = 128; });
  add("heads of 96, no gate", [](ModelConfig& c, AttentionSpec&) {
    c.heads = 2, c.kv_heads = 2, c.head_dim = 96;
    c.feed_forward = FeedForward::gelu;
  });
  for (const auto& [name, config] : all) expect_close(name, config, random_tokens(1, 200));
}

// Twenty texts, some of which begin with the pages of another.
TEST_F(DeviceDecoder, DecodesManyTextsTogether) {
  const at::NoGradGuard no_grad;
  ModelConfig config = small();
  config.context = 300;
  for (const at::Device device : all_devices()) {
    const Transformer model = moved(make(config, at::kDouble), device, at::kBFloat16);
    if (model.why_no_fused_decoder()) continue;
    const at::Tensor ids = random_tokens(1, 150), next = random_tokens(20, 1);
    DecodeState first = model.make_decode_state(1, 300);
    model.decode(ids.to(device), first);
    std::vector<DecodeState> alone, together;
    for (int64_t n = 0; n < 20; ++n) {
      alone.push_back(first.fork());
      const at::Tensor more = random_tokens(1, 20).narrow(1, 0, n % 4 + 1).to(device);
      if (n % 2 == 0) model.decode(more, alone.back());
      together.push_back(alone.back().fork());
    }
    std::vector<DecodeState*> states;
    for (DecodeState& state : together) states.push_back(&state);
    const at::Tensor z = model.decode_together(next, states).cpu();
    for (const int64_t n : {0, 1, 7, 18, 19}) {
      const at::Tensor expected =
          model.decode(next.narrow(0, n, 1).to(device), alone[static_cast<size_t>(n)]).cpu();
      EXPECT_LT(relative_error(z[n].to(at::kDouble), expected[0].to(at::kDouble)), 2e-2)
          << "text " << n << " on " << device;
    }
  }
}

}  // namespace
}  // namespace fovea::device_decoder_test
