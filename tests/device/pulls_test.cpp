// Nothing pulls to the host in a step: how often the host waits for the device in one step of
// training, for one token and in scoring, counted on the fake device for every setting of a model.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "fovea/base/files.h"
#include "fovea/infer/sampling.h"
#include "fovea/runtime/device_for_tests.h"
#include "fovea/train/trainer.h"
#include "tests/support/decoder_settings.h"
#include "tests/support/fake_device.h"
#include "tests/support/temporary_folder.h"

namespace fovea::pulls_test {
namespace {

using namespace fovea::testing;
using namespace fovea::decoder_settings;

struct Waits {
  int64_t training = 1;  // loss, gradient norm and what is logged, read together
  int64_t token = 1;     // its logits, to draw from
  int64_t scoring = 0;   // of one batch
};

/// Settings that wait more often, and how often. Numbers fall, rows go away.
const std::map<std::string, Waits>& above() {
  static const std::map<std::string, Waits> all{
      // Centroids and sample of each of three layers: k-means asks where centroids are empty.
      {"Focus that reclusters in every step", {.training = 7}},
  };
  return all;
}

std::vector<Named> settings() {
  std::vector<Named> all = options();
  const auto add = [&](const char* name, auto set) {
    ModelConfig c = small();
    set(c, c.attention.spec);
    all.emplace_back(name, c);
  };
  add("plain", [](ModelConfig&, AttentionSpec&) {});
  add("Performer, drawn anew", [](ModelConfig& c, AttentionSpec& s) {
    s.performer.features = 16;
    c.attention.performer.redraw = 1;
  });
  add("Routing", [](ModelConfig&, AttentionSpec& s) { s.routing = {.clusters = 3, .keep = 4}; });
  add("Longformer, dilation, projections", [](ModelConfig&, AttentionSpec& s) {
    s.longformer = {.window = 3, .dilation = {1, 1, 2, 2}, .globals = 2, .projections = true};
  });
  add("MagicPIG", [](ModelConfig&, AttentionSpec& s) {
    s.magic_pig = {.bits = 2, .tables = 6, .start = 1, .recent = 2, .seed = 3};
  });
  add("given blocks", [](ModelConfig&, AttentionSpec& s) {
    s.blocks = {.size = 4, .pairs = {0, 0, 1, 1, 1, 0, 2, 2, 3, 3, 3, 1}};
  });
  for (const auto sparsity : {MaskRule::Sparsity::strided, MaskRule::Sparsity::fixed})
    add(("sparsity " + std::string(enum_name(sparsity))).c_str(),
        [&](ModelConfig&, AttentionSpec& s) {
          s.mask.sparsity = sparsity;
          if (sparsity == MaskRule::Sparsity::strided) s.mask.window = 3, s.mask.stride = 3;
          if (sparsity == MaskRule::Sparsity::fixed) s.mask.block = 4, s.mask.summary = 1;
        });
  add("a temperature of the whole text", [](ModelConfig&, AttentionSpec& s) {
    s.temperature = {.kind = TemperatureSpec::Kind::learned,
                     .form = TemperatureSpec::Form::sequence};
  });
  add("Focus with added losses, centroids that follow", [](ModelConfig& c, AttentionSpec& s) {
    s.focus = hard_focus();
    s.focus.gate = FocusSpec::Gate::logsig;
    c.attention.focus.balance_weight = c.attention.focus.entropy_weight = 0.1;
    c.attention.focus.centroid_decay = 0.9;
  });
  add("Focus that reclusters in every step", [](ModelConfig& c, AttentionSpec& s) {
    s.focus = hard_focus();
    s.focus.gate = FocusSpec::Gate::log;
    c.attention.focus.recluster_interval = 1;
  });
  for (const auto potentials : {FocusSpec::Potentials::sequence, FocusSpec::Potentials::batch})
    add(("Focus, potentials " + std::string(enum_name(potentials))).c_str(),
        [&](ModelConfig&, AttentionSpec& s) {
          s.focus = hard_focus();
          s.focus.gate = FocusSpec::Gate::log;
          s.focus.potentials = potentials;
        });
  add("dropout", [](ModelConfig& c, AttentionSpec& s) { c.dropout = s.dropout = 0.1; });
  return all;
}

/// A recipe over short documents, several in a row.
Recipe recipe_for(const ModelConfig& config, const std::filesystem::path& root) {
  if (!std::filesystem::exists(root / "text")) {
    std::filesystem::create_directories(root / "text");
    for (int i = 0; i < 60; ++i)
      write_file(root / "text" / (std::to_string(i) + ".txt"), "focus " + std::to_string(i));
  }
  Recipe recipe;
  recipe.name = "pulls";
  recipe.run_folder = (root / "run").string();
  recipe.model = config;
  if (config.lora.active()) recipe.train.trainable = "lora";
  recipe.data.sources.resize(1);
  recipe.data.sources[0].path = (root / "text").string();
  recipe.data.sources[0].name = "made";
  recipe.data.cache = (root / "cache").string();
  recipe.train.steps = 3;
  recipe.train.sequence_length = 24;
  recipe.train.batch_rows = 2;
  recipe.train.accumulation = 2;
  recipe.train.dtype = DtypeChoice::float32;
  recipe.train.evaluation_tokens = 64;
  recipe.train.log_interval = 1;
  recipe.train.threads = 1;
  return recipe;
}

/// Runs `count` for every setting and holds its answers against one column of the table.
template <class Count>
void hold(int64_t Waits::*column, const Count& count) {
  const DeviceForTests device(fake_device());
  for (const auto& [name, config] : settings()) {
    SCOPED_TRACE(name);
    const auto found = above().find(name);
    const int64_t most = (found == above().end() ? Waits{} : found->second).*column;
    std::string places;
    const int64_t waits = count(config, places);
    EXPECT_LE(waits, most) << places;
    EXPECT_GE(waits, most) << "fewer than the table says: lower its number";
  }
}

TEST(Pulls, OneStepOfTrainingWaitsOnce) {
  const TemporaryFolder folder;
  hold(&Waits::training, [&](const ModelConfig& config, std::string& places) {
    const Recipe recipe = recipe_for(config, folder.path());
    std::filesystem::remove_all(recipe.run_folder);
    std::optional<CountedPulls> pulls;
    int64_t waits = -1;
    TrainCallbacks callbacks;
    callbacks.trace = [&](std::string_view point, int64_t step) {
      if (point != "recorded") return;
      if (pulls) waits = pulls->count(), places = pulls->text();
      pulls.reset();
      if (step == 1) pulls.emplace();
    };
    Trainer(recipe, callbacks).run();
    return waits;
  });
}

TEST(Pulls, OneTokenWaitsForItsLogits) {
  hold(&Waits::token, [](const ModelConfig& config, std::string& places) {
    const TemperatureSpec& temperature = config.attention.spec.temperature;
    if (temperature.kind == TemperatureSpec::Kind::learned &&
        temperature.form == TemperatureSpec::Form::sequence)
      return Waits{}.token;  // has no decoding
    const FocusSpec& focus = config.attention.spec.focus;
    if (focus.active() && (focus.potentials == FocusSpec::Potentials::sequence ||
                           focus.potentials == FocusSpec::Potentials::batch))
      return Waits{}.token;  // likewise
    const Transformer model(config.resolved(kVocab), 3, fake_device());
    const at::Tensor ids = tokens(1).to(fake_device());
    DecodeState state = model.make_decode_state(1, kTokens);
    model.decode(ids.narrow(1, 0, kTokens - 2), state);
    model.decode(ids.narrow(1, kTokens - 2, 1), state);
    Sampler sampler({}, 1, kVocab);
    const CountedPulls pulls;
    sampler.next(model.decode(ids.narrow(1, kTokens - 1, 1), state)[0]);
    places = pulls.text();
    return pulls.count();
  });
}

TEST(Pulls, ScoringWaitsForNothing) {
  hold(&Waits::scoring, [](const ModelConfig& config, std::string& places) {
    const Transformer model(config.resolved(kVocab), 3, fake_device());
    const at::Tensor ids = tokens(2).to(fake_device());
    const auto table = [](const at::Tensor& x) { return x.expand({2, kTokens}).contiguous(); };
    const at::Tensor index = at::arange(kTokens);
    int64_t most = 0;
    for (const bool packed : {false, true}) {
      ModelInput input{.tokens_bt = ids};
      if (packed) {
        input.documents_bt = table(index.div(5, "floor"));
        input.positions_bt = table(index.remainder(5));
      }
      const CountedPulls pulls;
      model.token_nll(input, ids.roll(1, 1));
      most = std::max(most, pulls.count());
      places += pulls.text();
    }
    return most;
  });
}

}  // namespace
}  // namespace fovea::pulls_test
