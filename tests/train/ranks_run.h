// Tiny runs on several ranks, and the comparison of their losses.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fovea/config/reader.h"
#include "fovea/report/metrics_log.h"
#include "fovea/train/trainer.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/tiny_run.h"

namespace fovea::testing {

class RanksRun : public ::testing::Test {
 protected:
  Recipe recipe(const std::string& attention, const std::string& run) {
    Recipe r = tiny_recipe(folder_.path());
    r.model.kv_heads = 2;
    read_fields(parse_json(attention, "attention"), r.model.attention);
    r.run_folder = (folder_ / run).string();
    r.train.batch_rows = 4;
    r.train.accumulation = 2;
    r.train.evaluation_rows = 1;
    r.train.optimizer.learning_rate = 1e-3;
    return r;
  }
  /// Losses of the steps, as rank 0 tells them, and the result.
  struct Run {
    std::vector<double> losses, norms;
    TrainResult result;
  };
  Run train(const Recipe& r, int64_t count) {
    Run run;
    run_ranks(count, [&](Communicator& ranks) {
      TrainCallbacks callbacks;
      callbacks.step = [&](const TrainProgress& p) {
        if (!ranks.is_first()) return;
        run.losses.push_back(p.loss);
        run.norms.push_back(p.gradient_norm);
      };
      const TrainResult result = Trainer(r, callbacks, nullptr, ranks).run();
      if (ranks.is_first()) run.result = result;
    });
    return run;
  }
  static void expect_same(const Run& one, const Run& other, const std::string& name) {
    ASSERT_EQ(one.losses.size(), other.losses.size()) << name;
    // The gradient of Sinkhorn's Focus amplifies roundings: a learning rate changed by 1e-6 of
    // itself changes its norm by 6e-5 within 24 steps of one process.
    const double later = name.starts_with("focus") ? 3e-4 : 1e-5;
    for (size_t i = 0; i < one.losses.size(); ++i) {
      EXPECT_NEAR(one.losses[i], other.losses[i], 1e-6 * one.losses[i]) << name << ", step " << i;
      EXPECT_NEAR(one.norms[i], other.norms[i], (i < 8 ? 1e-5 : later) * one.norms[i])
          << name << ", step " << i;
    }
    EXPECT_EQ(one.result.tokens, other.result.tokens);
    const SourceEvaluation a = one.result.evaluation.total(), b = other.result.evaluation.total();
    EXPECT_EQ(a.targets, b.targets);
    EXPECT_NEAR(a.loss(), b.loss(), 1e-6 * a.loss()) << name;
  }
  /// metrics.jsonl of two run folders: ln Z over the targets of all ranks.
  void expect_same_ln_z(const std::string& one, const std::string& other) {
    const auto a = read_metrics(folder_ / one / "metrics.jsonl"),
               b = read_metrics(folder_ / other / "metrics.jsonl");
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      for (const char* key : {"logits/ln_z", "logits/ln_z_rms"})
        EXPECT_NEAR(a[i].at(key).get<double>(), b[i].at(key).get<double>(), 1e-4)
            << key << ", " << i;
    }
  }
  TemporaryFolder folder_;
};

}  // namespace fovea::testing
