// Models give the float64 numbers of the CPU on every device: loss, gradients, logits, decoding.
// Machines without a GPU check the CPU, and there the operations that a GPU would run.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fovea/nn/transformer.h"
#include "fovea/runtime/own_kernels.h"
#include "tests/support/decoder_settings.h"
#include "tests/support/devices.h"
#include "tests/support/gradcheck.h"
#ifdef FOVEA_FAKE_KERNELS
#include "tests/support/fake_kernels.h"
#endif

namespace fovea::model_device_test {
namespace {

using namespace decoder_settings;
using testing::all_devices;
using testing::relative_error;

/// Settings of decoder_settings.h and those of the systems that it has not.
std::vector<Named> settings() {
  std::vector<Named> all = options();
  const auto add = [&](const char* name, auto set) {
    ModelConfig c = small();
    set(c.attention.spec);
    all.emplace_back(name, c);
  };
  add("Performer", [](AttentionSpec& s) { s.performer.features = 16; });
  add("Routing", [](AttentionSpec& s) { s.routing = {.clusters = 3, .keep = 4}; });
  add("Longformer, dilation, projections", [](AttentionSpec& s) {
    s.longformer = {.window = 3, .dilation = {1, 1, 2, 2}, .globals = 2, .projections = true};
  });
  add("MagicPIG", [](AttentionSpec& s) {
    s.magic_pig = {.bits = 2, .tables = 6, .start = 1, .recent = 2, .seed = 3};
  });
  return all;
}

Transformer moved(const Transformer& model, at::Device device) {
  Transformer there(model.config(), 3, device);
  const at::NoGradGuard no_grad;
  for (Parameter& p : there.parameters().all())
    p.value.copy_(model.parameters().find(p.name)->value);
  return there;
}

at::Tensor decoded_on(const Transformer& model, const at::Tensor& ids) {
  const at::NoGradGuard no_grad;
  DecodeState state = model.make_decode_state(ids.size(0), ids.size(1));
  std::vector<at::Tensor> all{model.decode(ids.narrow(1, 0, 5), state, true)};
  for (int64_t i = 5; i < ids.size(1); ++i)
    all.push_back(model.decode(ids.narrow(1, i, 1), state, true));
  return at::cat(all, 1).cpu().to(at::kDouble);
}

/// Devices, and whether formulas take there the form for a GPU on the CPU.
std::vector<std::pair<at::Device, bool>> places() {
  std::vector<std::pair<at::Device, bool>> all{{at::kCPU, true}};
  for (const at::Device device : all_devices()) all.emplace_back(device, false);
  return all;
}

std::vector<at::Tensor> trainable(const Transformer& model) {
  std::vector<at::Tensor> all;
  for (const Parameter& p : model.parameters().all())
    if (p.trainable) all.push_back(p.value);
  return all;
}

TEST(ModelDevice, EverySettingIsTheSameEverywhere) {
#ifdef FOVEA_FAKE_KERNELS
  const testing::FakeDeviceKernels kernels;  // which take few of these problems
#endif
  const at::Tensor ids = tokens(2), targets = tokens(2).roll(1, 1);
  for (const auto& [name, config] : settings()) {
    SCOPED_TRACE(name);
    Transformer model = make(config, at::kDouble);
    const at::Tensor truth = model.loss({.tokens_bt = ids, .training = true}, targets).loss;
    const auto expected = testing::gradients(truth, trainable(model));
    const at::Tensor logits = decoded_on(model, ids);
    for (const auto& [device, by_operations] : places()) {
      SCOPED_TRACE(device.str() + (by_operations ? " by operations" : ""));
      std::optional<WithoutOwnKernels> guard;
      if (by_operations) guard.emplace();
      Transformer there = moved(model, device);
      there.compute().dtype = at::kFloat;
      const at::Tensor loss =
          there.loss({.tokens_bt = ids.to(device), .training = true}, targets.to(device)).loss;
      EXPECT_LT(relative_error(loss.cpu(), truth), 1e-5);
      const auto got = testing::gradients(loss, trainable(there));
      for (size_t n = 0; n < got.size(); ++n)
        EXPECT_LT((got[n].cpu() - expected[n]).abs().max().item<double>(),
                  1e-4 * (1e-2 + expected[n].abs().max().item<double>()))
            << "gradient " << n;
      EXPECT_LT(relative_error(decoded_on(there, ids.to(device)), logits), 1e-4);
    }
  }
}

}  // namespace
}  // namespace fovea::model_device_test
