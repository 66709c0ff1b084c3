// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/train/plan_rules.h"

#include <fmt/format.h>

#include <cmath>

namespace fovea {
namespace {

double ratio(int64_t a, int64_t b) { return static_cast<double>(a) / static_cast<double>(b); }

RuleCheck feed_forward(const ModelConfig& c) {
  const double r = ratio(c.ffn_width, c.width), consensus = 8.0 / 3.0;
  RuleCheck check{
      .rule = "feed-forward width / width: 8/3 for gated units, 1 to 10 is near-optimal",
      .value = fmt::format("{:.2f}", r),
      .source = "notes 2.1"};
  if (r < 1.0 || r > 10.0) {
    check.verdict = RuleVerdict::against;
    check.advice = fmt::format("outside the basin; model.ffn_width near {:.0f}",
                               64.0 * std::round(consensus * static_cast<double>(c.width) / 64.0));
  } else if (std::abs(r / consensus - 1.0) > 0.25) {
    check.verdict = RuleVerdict::unusual;
    check.advice = "inside the basin, but not what models choose";
  }
  return check;
}

RuleCheck head_widths(const ModelConfig& c) {
  const double r = ratio(c.heads * c.head_dim, c.width);
  RuleCheck check{.rule = "heads x head width / width: 1",
                  .value = fmt::format("{:.2f}", r),
                  .source = "notes 2.2"};
  if (std::abs(r - 1.0) > 1e-9) {
    check.verdict = r < 0.5 || r > 2.0 ? RuleVerdict::against : RuleVerdict::unusual;
    check.advice = fmt::format("model.head_dim = {} gives 1", c.width / c.heads);
  }
  return check;
}

RuleCheck aspect(const ModelConfig& c) {
  const double r = ratio(c.width, c.layers);
  RuleCheck check{.rule = "width / layers: 100 to 200",
                  .value = fmt::format("{:.0f}", r),
                  .source = "notes 2.3"};
  if (r < 100.0 || r > 205.0) {  // BLOOM, in the notes' list of the usual, has 205
    check.verdict = r < 25.0 || r > 800.0 ? RuleVerdict::against : RuleVerdict::unusual;
    check.advice = r < 100.0 ? "deep and narrow: slow to run in parallel" : "wide and shallow";
  }
  return check;
}

RuleCheck vocabulary(const ModelConfig& c) {
  const int64_t v = c.vocab_size;
  RuleCheck check{.rule = "vocabulary: 30K to 50K for one language, 100K to 250K for many",
                  .value = std::to_string(v),
                  .source = "notes 2.4"};
  const bool usual = (v >= 30'000 && v <= 51'000) || (v >= 100'000 && v <= 262'144);
  if (!usual) {
    check.verdict = RuleVerdict::unusual;
    check.advice = v < 1000 ? "bytes: long sequences, no tokenizer to train; fine for small models"
                            : "between or beside the usual sizes";
  }
  return check;
}

RuleCheck dropout(const ModelConfig& c) {
  RuleCheck check{.rule = "dropout: none where data is seen about once",
                  .value = fmt::format("{:g}", std::max(c.dropout, c.attention.spec.dropout)),
                  .source = "notes 2.5"};
  if (c.dropout > 0.0 || c.attention.spec.dropout > 0.0) {
    check.verdict = RuleVerdict::unusual;
    check.advice = "newer models have none";
  }
  return check;
}

RuleCheck weight_decay(const TrainConfig& t) {
  RuleCheck check{.rule = "weight decay: on, with a falling learning rate",
                  .value = fmt::format("{:g}, {}; effective step lr x wd = {:.2g}",
                                       t.optimizer.weight_decay, enum_name(t.schedule.kind),
                                       t.optimizer.learning_rate * t.optimizer.weight_decay),
                  .source = "notes 2.5"};
  if (t.optimizer.weight_decay <= 0.0) {
    check.verdict = RuleVerdict::unusual;
    check.advice = "its gain shows at the end of a falling schedule; 0.05 to 0.1 is common";
  }
  return check;
}

RuleCheck stability(const ModelConfig& c, const TrainConfig& t) {
  const bool normed = c.qk_norm != QkNorm::none, capped = c.attention.spec.soft_cap > 0.0;
  RuleCheck check{.rule = "attention logits bounded by QK-norm (or a soft-cap) at high rates",
                  .value = fmt::format("{}, lr {:g}",
                                       normed   ? "QK-norm"
                                       : capped ? "soft-cap"
                                                : "neither",
                                       t.optimizer.learning_rate),
                  .source = "notes 3.3, 3.4"};
  if (!normed && !capped && t.optimizer.learning_rate >= 1e-3) {
    check.verdict = RuleVerdict::unusual;
    check.advice = "model.qk_norm: head_rms allows larger rates";
  }
  return check;
}

RuleCheck kv_heads(const RunPlan& plan) {
  const ModelConfig& c = plan.model;
  RuleCheck check{
      .rule = "KV heads: fewer than query heads (GQA) for long contexts",
      .value = fmt::format("{} of {}; cache {:.1f} MB a sequence", c.kv_heads, c.heads,
                           plan.decode.empty()
                               ? 0.0
                               : 4e-6 * static_cast<double>(c.kv_heads * c.head_dim * c.layers) *
                                     static_cast<double>(c.context)),
      .source = "notes 4.1"};
  if (c.kv_heads == c.heads && c.context >= 4096) {
    check.verdict = RuleVerdict::unusual;
    check.advice = "GQA costs little quality and divides the cache";
  } else if (c.kv_heads == 1 && c.heads > 1) {
    check.verdict = RuleVerdict::unusual;
    check.advice = "MQA can cost a little perplexity; GQA hardly";
  }
  return check;
}

RuleCheck data_size(const RunPlan& plan) {
  const double r = static_cast<double>(plan.tokens) / static_cast<double>(plan.parameters.total());
  RuleCheck check{.rule = "tokens per parameter: 20 is compute-optimal, more for a model to use",
                  .value = plan.tokens > 0 ? fmt::format("{:.1f}", r) : "the budget is a time",
                  .source = "Hoffmann et al. 2022"};
  if (plan.tokens > 0 && r < 10.0) {
    check.verdict = RuleVerdict::unusual;
    check.advice = "a smaller model on more tokens would end lower at this cost";
  }
  return check;
}

}  // namespace

std::vector<RuleCheck> check_rules(const Recipe& recipe, const RunPlan& plan) {
  const ModelConfig& c = plan.model;
  return {feed_forward(c),
          head_widths(c),
          aspect(c),
          vocabulary(c),
          dropout(c),
          weight_decay(recipe.train),
          stability(c, recipe.train),
          kv_heads(plan),
          data_size(plan)};
}

}  // namespace fovea
