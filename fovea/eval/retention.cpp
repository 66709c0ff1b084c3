// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/retention.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "fovea/attention/visible_keys.h"
#include "fovea/base/error.h"
#include "fovea/eval/copy_score.h"
#include "fovea/text/result_json.h"

namespace fovea {
namespace {

/// Scores one model in several modes.
class Measure {
 public:
  Measure(Transformer& model, const Tokenizer& tokenizer, std::span<const ScoreDocument> documents,
          const RetentionOptions& options,
          const std::function<void(std::string_view, int64_t, int64_t)>& progress)
      : model_(model),
        tokenizer_(tokenizer),
        documents_(documents),
        options_(options),
        progress_(progress),
        before_(model.compute()) {
    if (options.copy <= 0) return;
    for (const ScoreDocument& document : documents) text_ += document.text;
  }
  Measure(const Measure&) = delete;
  Measure& operator=(const Measure&) = delete;
  ~Measure() { model_.compute() = before_; }

  /// `of_copy` is the change for the copy score, whose texts have another length.
  RetentionScore score(FocusMode mode, FocusChange change, const std::string& label,
                       std::optional<FocusChange> of_copy = {}) {
    change.sinks = options_.sinks;
    model_.compute().focus = mode;
    model_.compute().focus_change = change;
    const ScoreResult text = score_text(model_, tokenizer_, documents_, options_.score,
                                        [&](int64_t done, int64_t total) {
                                          if (progress_) progress_(label, done, total);
                                        });
    RetentionScore score{.pairs = text.pairs_kept,
                         .distant = text.distant_kept,
                         .perplexity = text.total.token_perplexity()};
    if (options_.copy > 0) {
      if (of_copy) {
        of_copy->sinks = options_.sinks;
        model_.compute().focus_change = *of_copy;
      }
      score.copy =
          copy_score(model_, tokenizer_, text_, options_.copy, options_.copy_windows).second;
    }
    return score;
  }

 private:
  Transformer& model_;
  const Tokenizer& tokenizer_;
  std::span<const ScoreDocument> documents_;
  const RetentionOptions& options_;
  const std::function<void(std::string_view, int64_t, int64_t)>& progress_;
  const ComputeOptions before_;
  std::string text_;
};

}  // namespace

double window_pairs(int64_t tokens, int64_t window, int64_t sinks) {
  const int64_t w = std::min(window, tokens);
  // Rows below w see all; the others w keys, and the sinks before them.
  double kept = 0.5 * static_cast<double>(w) * static_cast<double>(w + 1);
  kept += static_cast<double>(tokens - w) * static_cast<double>(w);
  for (int64_t before = 1; before <= tokens - w; ++before) {
    if (before >= sinks) {
      kept += static_cast<double>(tokens - w - before + 1) * static_cast<double>(sinks);
      break;
    }
    kept += static_cast<double>(before);
  }
  return kept / (0.5 * static_cast<double>(tokens) * static_cast<double>(tokens + 1));
}

int64_t window_of_pairs(int64_t tokens, double pairs, int64_t sinks) {
  int64_t low = 1, high = tokens;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (window_pairs(tokens, middle, sinks) >= pairs) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

double masked_share(int64_t tokens, const MaskRule& rule) {
  double kept = 0.0;
  for (int64_t i = 0; i < tokens; ++i) kept += static_cast<double>(visible_keys(rule, i, i + 1));
  return kept / (0.5 * static_cast<double>(tokens) * static_cast<double>(tokens + 1));
}

int64_t stride_of_pairs(int64_t tokens, double pairs, int64_t window, int64_t sinks) {
  constexpr int64_t kMost = 512;  // sparser ones keep hardly more than the window
  int64_t best = 1;
  double least = 2.0;
  for (int64_t stride = 1; stride <= std::min(tokens, kMost); ++stride) {
    const double share = masked_share(tokens, {.window = window,
                                               .sinks = sinks,
                                               .sparsity = MaskRule::Sparsity::strided,
                                               .stride = stride});
    if (std::abs(share - pairs) >= least) continue;
    least = std::abs(share - pairs);
    best = stride;
  }
  return best;
}

RetentionResult measure_retention(
    Transformer& model, const Tokenizer& tokenizer, std::span<const ScoreDocument> documents,
    const RetentionOptions& options,
    const std::function<void(std::string_view, int64_t, int64_t)>& progress) {
  require<UnsupportedError>(model.has("focus"), "eval",
                            "retention is measured of models with Focus; this one has none");
  const FocusSpec& spec = model.config().attention.spec.focus;
  RetentionResult result;
  result.options = options.score.resolved(model.config());
  result.groups = spec.groups;
  result.local_window = spec.window;
  result.sinks = options.sinks >= 0 ? options.sinks : spec.sinks;
  Measure measure(model, tokenizer, documents, options, progress);
  result.full = measure.score(FocusMode::off, {}, "full attention");
  result.soft = measure.score(FocusMode::configured, {}, "soft gate");
  const int64_t most =
      options.most_top_k > 0 ? std::min(options.most_top_k, spec.groups) : spec.groups;
  for (int64_t k = 1; k <= most; ++k) {
    RetentionRow row{.top_k = k, .full = 2 * k > spec.groups};
    if (row.full) {
      row.trained = result.full;
    } else {
      const std::string label = fmt::format("top-{} of {}", k, spec.groups);
      row.trained = measure.score(FocusMode::hard, {.top_k = k}, label);
      const int64_t tokens = result.options.window, of_copy = 2 * options.copy + 1;
      const double pairs = row.trained.pairs;
      row.window = window_of_pairs(tokens, pairs, result.sinks);
      row.windowed =
          measure.score(FocusMode::window, {.window = row.window}, label + ", window",
                        FocusChange{.window = window_of_pairs(of_copy, pairs, result.sinks)});
      const auto stride = [&](int64_t length) {
        return stride_of_pairs(length, pairs, result.local_window, result.sinks);
      };
      row.stride = stride(tokens);
      row.strided = measure.score(FocusMode::window, {.stride = row.stride}, label + ", strided",
                                  FocusChange{.stride = stride(of_copy)});
      row.strided.pairs = masked_share(tokens, {.window = result.local_window,
                                                .sinks = result.sinks,
                                                .sparsity = MaskRule::Sparsity::strided,
                                                .stride = row.stride});
      row.random = measure.score(FocusMode::random, {.top_k = k}, label + ", random groups");
      row.hashed = measure.score(FocusMode::hash, {.top_k = k}, label + ", hash groups");
    }
    result.rows.push_back(row);
  }
  return result;
}

template <class V>
void describe(V& v, RetentionScore& s) {
  v("pairs", s.pairs);
  v("distant_pairs", s.distant);
  v("perplexity", s.perplexity);
  v.optional("copy_perplexity", s.copy, s.copy > 0.0);
}

template <class V>
void describe(V& v, RetentionRow& r) {
  v("top_k", r.top_k);
  v("is_full_attention", r.full);
  v("trained", r.trained);
  if (r.full) return;
  v.group("windowed", [&](auto& of) {
    describe(of, r.windowed);
    of("window", r.window);
  });
  v.group("strided", [&](auto& of) {
    describe(of, r.strided);
    of("stride", r.stride);
  });
  v("random", r.random);
  v("hashed", r.hashed);
}

template <class V>
void describe(V& v, RetentionResult& r) {
  v("window", r.options.window);
  v("groups", r.groups);
  v("local_window", r.local_window);
  v("sinks", r.sinks);
  v("full", r.full);
  v("soft", r.soft);
  v("rows", r.rows);
}

nlohmann::ordered_json RetentionResult::to_json() const { return described_json(*this); }

}  // namespace fovea
