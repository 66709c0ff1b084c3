// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/likelihood_scorer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>

namespace fovea {
namespace {

// Rows of logits at a time: 128 rows of 50,000 tokens are 25 MB in float32. malloc keeps blocks
// below 32 MB for the next call; larger ones come as fresh pages, which must be cleared.
constexpr int64_t kLogitRows = 128;

/// The token that a state predicts, and where its log-likelihood counts.
struct Target {
  int32_t token = 0;
  EndingScore* score = nullptr;
};

/// int64 [b, t]; rows are filled up with token 0 behind their end.
at::Tensor token_rows(const std::vector<std::span<const int32_t>>& rows, int64_t t) {
  const at::Tensor ids = at::zeros({std::ssize(rows), t}, at::kLong);
  for (size_t b = 0; b < rows.size(); ++b)
    std::ranges::copy(rows[b], ids.mutable_data_ptr<int64_t>() + static_cast<int64_t>(b) * t);
  return ids;
}

/// States and what they must predict, until there are enough for the head.
class Targets {
 public:
  explicit Targets(const Transformer& model) : model_(model) {}

  /// `targets[i]` belong to row `rows[i]` of states [r, c].
  void add(const at::Tensor& states_rc, const std::vector<int64_t>& rows,
           std::vector<std::vector<Target>> targets) {
    if (rows.empty()) return;
    states_.push_back(
        states_rc.index_select(0, at::tensor(rows, at::kLong).to(states_rc.device())));
    std::ranges::move(targets, std::back_inserter(targets_));
    if (std::ssize(targets_) >= kLogitRows) flush();
  }

  void flush() {
    if (targets_.empty()) return;
    const at::Tensor states = at::cat(states_);
    for (int64_t begin = 0; begin < states.size(0); begin += kLogitRows) {
      const int64_t count = std::min(kLogitRows, states.size(0) - begin);
      score(states.narrow(0, begin, count),
            std::span(targets_).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)));
    }
    states_.clear();
    targets_.clear();
  }

 private:
  void score(const at::Tensor& states_rc, std::span<const std::vector<Target>> targets) const {
    at::Tensor z = model_.logits(states_rc);
    std::vector<int64_t> rows, tokens;
    for (size_t r = 0; r < targets.size(); ++r) {
      for (const Target& target : targets[r]) {
        rows.push_back(static_cast<int64_t>(r));
        tokens.push_back(target.token);
      }
    }
    const at::Tensor row = at::tensor(rows, at::kLong).to(z.device());
    const at::Tensor token = at::tensor(tokens, at::kLong).to(z.device());
    const at::Tensor largest = z.amax(1, true);
    const at::Tensor gap = z.index({row, token}) - largest.squeeze(1).index({row});
    const at::Tensor log_sum = z.sub_(largest).exp_().sum(1).log().index({row});
    const at::Tensor likelihood = (gap - log_sum).to(at::kCPU, at::kDouble);
    const at::Tensor greedy = gap.eq(0).to(at::kCPU);
    size_t n = 0;
    for (const std::vector<Target>& of_row : targets) {
      for (const Target& target : of_row) {
        target.score->log_likelihood += likelihood.const_data_ptr<double>()[n];
        target.score->greedy_tokens += greedy.const_data_ptr<bool>()[n];
        ++n;
      }
    }
  }

  const Transformer& model_;
  std::vector<at::Tensor> states_;
  std::vector<std::vector<Target>> targets_;
};

/// Scores the jobs of one batch.
class BatchScorer {
 public:
  BatchScorer(const Transformer& model, int64_t tokens_a_pass, std::span<const LikelihoodJob> jobs)
      : model_(model), tokens_a_pass_(tokens_a_pass), jobs_(jobs), targets_(model) {
    for (const LikelihoodJob& job : jobs) {
      first_.push_back(scores_.size());
      for (const Tokens& ending : job.endings) scores_.push_back({.tokens = std::ssize(ending)});
    }
  }
  std::vector<EndingScore> scores() const { return scores_; }

  /// Contexts of a batch behind the prefix in `prefix_state`, or from the start; then the endings.
  void score_shared(const DecodeState* prefix_state, size_t prefix) {
    const auto b = std::ssize(jobs_);
    int64_t t = 0, longest_ending = 0;
    std::vector<std::span<const int32_t>> rows;
    for (const LikelihoodJob& job : jobs_) {
      rows.push_back(job.context.subspan(prefix));
      t = std::max(t, std::ssize(rows.back()));
      longest_ending = std::max(longest_ending, job.longest_ending());
    }
    DecodeState state;
    if (prefix_state != nullptr) {
      state = prefix_state->select(std::vector<int64_t>(jobs_.size(), 0));
    } else {
      state = model_.make_decode_state(b, t + longest_ending - 1);
    }
    read_contexts(rows, t, state);
    score_endings(state);
    targets_.flush();
  }

  /// Every ending with its context as a row of its own.
  void score_whole() {
    std::vector<Tokens> inputs;
    std::vector<std::vector<Target>> targets;
    std::vector<int64_t> wanted;
    int64_t t = 0;
    for (const LikelihoodJob& job : jobs_) t = std::max(t, job.whole_length());
    for (size_t j = 0; j < jobs_.size(); ++j) {
      const LikelihoodJob& job = jobs_[j];
      for (size_t e = 0; e < job.endings.size(); ++e) {
        const Tokens& ending = job.endings[e];
        const int64_t row = std::ssize(inputs) * t + std::ssize(job.context) - 1;
        inputs.emplace_back(job.context.begin(), job.context.end());
        inputs.back().insert(inputs.back().end(), ending.begin(), ending.end() - 1);
        for (size_t i = 0; i < ending.size(); ++i) {
          wanted.push_back(row + static_cast<int64_t>(i));
          targets.push_back({{ending[i], score_of(j, e)}});
        }
      }
    }
    targets_.add(whole_states(inputs, t).flatten(0, 1), wanted, std::move(targets));
    targets_.flush();
  }

 private:
  EndingScore* score_of(size_t job, size_t e) { return &scores_[first_[job] + e]; }

  at::Tensor decode(const at::Tensor& ids, DecodeState& state) {
    return model_.decode_hidden(ids.to(model_.device()), state);
  }

  // Rows that are filled up are documents of their own, as in scoring.cpp: not every mechanism is
  // causal here.
  at::Tensor whole_states(const std::vector<Tokens>& inputs, int64_t t) {
    const at::NoGradGuard no_grad;
    const auto rows = std::ssize(inputs);
    const at::Tensor ids =
        token_rows(std::vector<std::span<const int32_t>>(inputs.begin(), inputs.end()), t);
    at::Tensor documents = at::zeros({rows, t}, at::kLong);
    at::Tensor positions = at::arange(t, at::kLong).repeat({rows, 1});
    bool filled_up = false;
    for (int64_t row = 0; row < rows; ++row) {
      const auto size = std::ssize(inputs[static_cast<size_t>(row)]);
      if (size == t) continue;
      documents[row].slice(0, size).fill_(1);
      positions[row].slice(0, size).sub_(size);
      filled_up = true;
    }
    ModelInput input{.tokens_bt = ids.to(model_.device()), .documents_bt = {}, .positions_bt = {}};
    if (filled_up) {
      input.documents_bt = documents.to(model_.device());
      input.positions_bt = positions.to(model_.device());
    }
    return model_.hidden(input);
  }

  // The last state of each context predicts the first token of all its endings.
  void read_contexts(const std::vector<std::span<const int32_t>>& rows, int64_t t,
                     DecodeState& state) {
    const auto b = std::ssize(jobs_);
    const int64_t chunk = std::max<int64_t>(tokens_a_pass_ / b, 1);
    const at::Tensor ids = token_rows(rows, t);
    const int64_t before = state.length();
    bool filled_up = false;
    for (int64_t from = 0; from < t; from += chunk) {
      const int64_t count = std::min(chunk, t - from);
      const at::Tensor states = decode(ids.narrow(1, from, count).contiguous(), state);
      std::vector<int64_t> wanted;
      std::vector<std::vector<Target>> targets;
      for (int64_t i = 0; i < b; ++i) {
        const auto j = static_cast<size_t>(i);
        const LikelihoodJob& job = jobs_[j];
        const int64_t last = std::ssize(rows[j]) - 1;
        filled_up = filled_up || last + 1 < t;
        if (last < from || last >= from + count) continue;
        wanted.push_back(i * count + last - from);
        targets.emplace_back();
        for (size_t e = 0; e < job.endings.size(); ++e)
          targets.back().push_back({job.endings[e].front(), score_of(j, e)});
      }
      targets_.add(states.flatten(0, 1), wanted, std::move(targets));
    }
    if (!filled_up) return;
    std::vector<int64_t> lengths;
    lengths.reserve(rows.size());
    for (const auto& row : rows) lengths.push_back(before + std::ssize(row));
    state.truncate(lengths);
  }

  void score_endings(const DecodeState& state) {
    std::vector<EndingRow> pending;
    for (size_t j = 0; j < jobs_.size(); ++j) {
      for (size_t e = 0; e < jobs_[j].endings.size(); ++e) {
        if (jobs_[j].endings[e].size() > 1) pending.push_back({j, e});
      }
    }
    // Rows of a pass are filled up to its longest ending: endings of a length go together.
    std::ranges::stable_sort(pending, std::greater(), [&](const EndingRow& row) {
      return jobs_[row.job].endings[row.ending].size();
    });
    // What a pass holds is bounded by its inputs, and by the contexts copied for it.
    const int64_t most_cached = kLikelihoodCachedPasses * tokens_a_pass_;
    const auto context = std::max<int64_t>(state.length(), 1);
    for (size_t from = 0; from < pending.size();) {
      size_t count = 0;
      int64_t t = 0;
      for (; from + count < pending.size(); ++count) {
        const EndingRow& row = pending[from + count];
        const int64_t own = std::ssize(jobs_[row.job].endings[row.ending]) - 1;
        const int64_t longest = std::max(t, own);
        const auto with = static_cast<int64_t>(count) + 1;
        const bool wasteful = (with - 1) * longest >= kFastPass && 8 * own < 7 * longest;
        if (count > 0 &&
            (with * longest > tokens_a_pass_ || with * context > most_cached || wasteful))
          break;
        t = longest;
      }
      score_ending_rows(std::span(pending).subspan(from, count), t, state);
      from += count;
    }
  }

  struct EndingRow {
    size_t job = 0, ending = 0;
  };

  void score_ending_rows(std::span<const EndingRow> pending, int64_t t, const DecodeState& state) {
    std::vector<std::span<const int32_t>> rows;
    std::vector<int64_t> sequences, wanted;
    std::vector<std::vector<Target>> targets;
    for (const EndingRow& row : pending) {
      const Tokens& ending = jobs_[row.job].endings[row.ending];
      const int64_t first = std::ssize(rows) * t;
      rows.emplace_back(ending.data(), ending.size() - 1);
      sequences.push_back(static_cast<int64_t>(row.job));
      for (size_t i = 1; i < ending.size(); ++i) {
        wanted.push_back(first + static_cast<int64_t>(i) - 1);
        targets.push_back({{ending[i], score_of(row.job, row.ending)}});
      }
    }
    DecodeState copies = state.select(sequences);
    targets_.add(decode(token_rows(rows, t), copies).flatten(0, 1), wanted, std::move(targets));
  }

  // A pass of so many inputs computes as many a second as a larger one.
  static constexpr int64_t kFastPass = 384;

  const Transformer& model_;
  const int64_t tokens_a_pass_;
  const std::span<const LikelihoodJob> jobs_;
  std::vector<size_t> first_;  // score of a job's first ending
  std::vector<EndingScore> scores_;
  Targets targets_;
};

}  // namespace

std::vector<EndingScore> LikelihoodScorer::score(const LikelihoodPart& part) {
  const at::NoGradGuard no_grad;
  BatchScorer batch(model_, tokens_a_pass_, part.jobs);
  if (!shared_) {
    batch.score_whole();
    return batch.scores();
  }
  if (part.prefix == 0) {
    forget();
    batch.score_shared(nullptr, 0);
    return batch.scores();
  }
  read_prefix(part.jobs.front().context.first(part.prefix), part.capacity);
  batch.score_shared(&prefix_state_, part.prefix);
  return batch.scores();
}

void LikelihoodScorer::forget() {
  prefix_.clear();
  prefix_state_ = {};
}

void LikelihoodScorer::read_prefix(std::span<const int32_t> prefix, int64_t capacity) {
  if (capacity == capacity_ && std::ranges::equal(prefix, prefix_)) return;
  forget();  // before the next one is made
  DecodeState state = model_.make_decode_state(1, capacity);
  for (size_t from = 0; from < prefix.size();) {
    const size_t count = std::min(prefix.size() - from, static_cast<size_t>(tokens_a_pass_));
    const at::Tensor ids = token_rows({prefix.subspan(from, count)}, static_cast<int64_t>(count));
    model_.decode_hidden(ids.to(model_.device()), state);
    from += count;
  }
  prefix_.assign(prefix.begin(), prefix.end());
  capacity_ = capacity;
  prefix_state_ = std::move(state);
}

}  // namespace fovea
