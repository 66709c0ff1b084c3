// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/loglikelihood.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "fovea/attention/cache/streams.h"
#include "fovea/base/error.h"
#include "fovea/eval/likelihood_batches.h"
#include "fovea/text/jinja/python_text.h"

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

/// Where the scores of a job's endings are.
EndingScore* score_of(std::vector<LikelihoodAnswer>& answers, const LikelihoodJob& job, size_t e) {
  return &answers[job.request].endings[job.first_ending + e];
}

/// Scores the jobs of one plan.
class ContinuationScorer {
 public:
  ContinuationScorer(const Transformer& model, int64_t tokens_a_pass,
                     std::vector<LikelihoodAnswer>& answers)
      : model_(model), tokens_a_pass_(tokens_a_pass), answers_(answers), targets_(model) {}

  /// One cluster's shared beginning, read once.
  DecodeState read_prefix(std::span<const int32_t> prefix, int64_t capacity) {
    DecodeState state = model_.make_decode_state(1, capacity);
    for (size_t from = 0; from < prefix.size();) {
      const size_t count = std::min(prefix.size() - from, static_cast<size_t>(tokens_a_pass_));
      decode(token_rows({prefix.subspan(from, count)}, static_cast<int64_t>(count)), state);
      from += count;
    }
    return state;
  }

  /// Contexts of a batch behind the prefix in `prefix_state`, or from the start; then the endings.
  void score_shared(std::span<const LikelihoodJob> jobs, const DecodeState* prefix_state,
                    size_t prefix) {
    const auto b = std::ssize(jobs);
    int64_t t = 0, longest_ending = 0;
    std::vector<std::span<const int32_t>> rows;
    for (const LikelihoodJob& job : jobs) {
      rows.push_back(job.context.subspan(prefix));
      t = std::max(t, std::ssize(rows.back()));
      longest_ending = std::max(longest_ending, job.longest_ending());
    }
    DecodeState state;
    if (prefix_state != nullptr) {
      state = prefix_state->select(std::vector<int64_t>(jobs.size(), 0));
    } else {
      state = model_.make_decode_state(b, t + longest_ending - 1);
    }
    read_contexts(jobs, rows, t, state);
    score_endings(jobs, state);
    targets_.flush();
  }

  /// Every ending with its context as a row of its own.
  void score_whole(std::span<const LikelihoodJob> jobs) {
    std::vector<Tokens> inputs;
    std::vector<std::vector<Target>> targets;
    std::vector<int64_t> wanted;
    int64_t t = 0;
    for (const LikelihoodJob& job : jobs) t = std::max(t, job.whole_length());
    for (const LikelihoodJob& job : jobs) {
      for (size_t e = 0; e < job.endings.size(); ++e) {
        const Tokens& ending = job.endings[e];
        const int64_t row = std::ssize(inputs) * t + std::ssize(job.context) - 1;
        inputs.emplace_back(job.context.begin(), job.context.end());
        inputs.back().insert(inputs.back().end(), ending.begin(), ending.end() - 1);
        for (size_t i = 0; i < ending.size(); ++i) {
          wanted.push_back(row + static_cast<int64_t>(i));
          targets.push_back({{ending[i], score_of(answers_, job, e)}});
        }
      }
    }
    targets_.add(whole_states(inputs, t).flatten(0, 1), wanted, std::move(targets));
    targets_.flush();
  }

 private:
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
  void read_contexts(std::span<const LikelihoodJob> jobs,
                     const std::vector<std::span<const int32_t>>& rows, int64_t t,
                     DecodeState& state) {
    const auto b = std::ssize(jobs);
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
        const LikelihoodJob& job = jobs[static_cast<size_t>(i)];
        const int64_t last = std::ssize(rows[static_cast<size_t>(i)]) - 1;
        filled_up = filled_up || last + 1 < t;
        if (last < from || last >= from + count) continue;
        wanted.push_back(i * count + last - from);
        targets.emplace_back();
        for (size_t e = 0; e < job.endings.size(); ++e)
          targets.back().push_back({job.endings[e].front(), score_of(answers_, job, e)});
      }
      targets_.add(states.flatten(0, 1), wanted, std::move(targets));
    }
    if (!filled_up) return;
    std::vector<int64_t> lengths;
    lengths.reserve(rows.size());
    for (const auto& row : rows) lengths.push_back(before + std::ssize(row));
    state.truncate(lengths);
  }

  void score_endings(std::span<const LikelihoodJob> jobs, const DecodeState& state) {
    std::vector<EndingRow> pending;
    for (size_t j = 0; j < jobs.size(); ++j) {
      for (size_t e = 0; e < jobs[j].endings.size(); ++e) {
        if (jobs[j].endings[e].size() > 1) pending.push_back({j, e});
      }
    }
    // Rows of a pass are filled up to its longest ending: endings of a length go together.
    std::ranges::stable_sort(pending, std::greater(), [&](const EndingRow& row) {
      return jobs[row.job].endings[row.ending].size();
    });
    // What a pass holds is bounded by its inputs, and by the contexts copied for it.
    const int64_t most_cached = kLikelihoodCachedPasses * tokens_a_pass_;
    const auto context = std::max<int64_t>(state.length(), 1);
    for (size_t from = 0; from < pending.size();) {
      size_t count = 0;
      int64_t t = 0;
      for (; from + count < pending.size(); ++count) {
        const EndingRow& row = pending[from + count];
        const int64_t own = std::ssize(jobs[row.job].endings[row.ending]) - 1;
        const int64_t longest = std::max(t, own);
        const auto with = static_cast<int64_t>(count) + 1;
        const bool wasteful = (with - 1) * longest >= kFastPass && 8 * own < 7 * longest;
        if (count > 0 &&
            (with * longest > tokens_a_pass_ || with * context > most_cached || wasteful))
          break;
        t = longest;
      }
      score_ending_rows(jobs, std::span(pending).subspan(from, count), t, state);
      from += count;
    }
  }

  struct EndingRow {
    size_t job = 0, ending = 0;
  };

  void score_ending_rows(std::span<const LikelihoodJob> jobs, std::span<const EndingRow> pending,
                         int64_t t, const DecodeState& state) {
    std::vector<std::span<const int32_t>> rows;
    std::vector<int64_t> sequences, wanted;
    std::vector<std::vector<Target>> targets;
    for (const EndingRow& row : pending) {
      const Tokens& ending = jobs[row.job].endings[row.ending];
      const int64_t first = std::ssize(rows) * t;
      rows.emplace_back(ending.data(), ending.size() - 1);
      sequences.push_back(static_cast<int64_t>(row.job));
      for (size_t i = 1; i < ending.size(); ++i) {
        wanted.push_back(first + static_cast<int64_t>(i) - 1);
        targets.push_back({{ending[i], score_of(answers_, jobs[row.job], row.ending)}});
      }
    }
    DecodeState copies = state.select(sequences);
    targets_.add(decode(token_rows(rows, t), copies).flatten(0, 1), wanted, std::move(targets));
  }

  // A pass of so many inputs computes as many a second as a larger one.
  static constexpr int64_t kFastPass = 384;

  const Transformer& model_;
  const int64_t tokens_a_pass_;
  std::vector<LikelihoodAnswer>& answers_;
  Targets targets_;
};

/// Why the cache cannot hold the contexts of this model; empty where it can.
std::string why_no_cache(const Transformer& model) {
  try {
    DecodeState state = model.make_decode_state(1, 1);
    model.decode_hidden(at::zeros({1, 1}, at::kLong).to(model.device()), state);
    return "";
  } catch (const UnsupportedError& error) {
    return error.what();
  }
}

/// Whether the cache of every layer can forget the tokens that fill a row up.
bool keeps_all_rows(const Transformer& model) {
  for (int64_t layer = 0; layer < model.config().layers; ++layer) {
    const auto streams =
        cache_streams(model.config().layer_attention(layer), model.compute().dtype);
    if (std::ranges::any_of(streams, [](const StreamSpec& s) { return s.keep_last > 0; }))
      return false;
  }
  return true;
}

}  // namespace

EncodedPair encode_pair(const Tokenizer& tokenizer, std::string_view context,
                        std::string_view ending) {
  const std::string_view kept = jinja::strip(context, jinja::Side::right);
  const std::string moved = std::string(context.substr(kept.size())) + std::string(ending);
  EncodedPair pair;
  if (tokenizer.bos() >= 0) pair.context.push_back(tokenizer.bos());
  if (kept.empty()) {
    if (pair.context.empty()) pair.context.push_back(tokenizer.eos());
    require<InputError>(pair.context.front() >= 0, "eval",
                        "expected a context; got an empty one, and the tokenizer has neither a "
                        "begin nor an end mark");
    tokenizer.append(moved, pair.ending);
    return pair;
  }
  tokenizer.append(kept, pair.context);
  Tokens whole;
  if (tokenizer.bos() >= 0) whole.push_back(tokenizer.bos());
  tokenizer.append(std::string(kept) + moved, whole);
  if (whole.size() > pair.context.size())
    pair.ending.assign(whole.begin() + std::ssize(pair.context), whole.end());
  return pair;
}

LikelihoodEngine::LikelihoodEngine(const Transformer& model, const LikelihoodOptions& options)
    : model_(model),
      context_(options.context > 0 ? options.context : model.config().context),
      tokens_a_pass_(std::max<int64_t>(options.tokens_a_pass, 1)),
      keeps_all_rows_(keeps_all_rows(model)),
      why_not_shared_(why_no_cache(model)) {}

std::string LikelihoodEngine::why_not(const LikelihoodRequest& request) const {
  for (const Tokens& ending : request.endings) {
    if (ending.empty()) return "an ending has no tokens of its own behind its context";
    if (std::ssize(ending) > context_)
      return fmt::format("an ending has {} tokens, more than the context of {}", ending.size(),
                         context_);
  }
  return "";
}

std::vector<LikelihoodAnswer> LikelihoodEngine::score(std::span<const LikelihoodRequest> requests,
                                                      const Answered& answered) const {
  const at::NoGradGuard no_grad;
  std::vector<LikelihoodAnswer> answers(requests.size());
  std::vector<size_t> waiting(requests.size(), 0);
  std::vector<LikelihoodJob> jobs = likelihood_jobs(requests, context_, answers);
  for (const LikelihoodJob& job : jobs) ++waiting[job.request];
  ContinuationScorer scorer(model_, tokens_a_pass_, answers);
  const auto finish = [&](std::span<const LikelihoodJob> batch) {
    for (const LikelihoodJob& job : batch) {
      if (--waiting[job.request] > 0) continue;
      for (const EndingScore& ending : answers[job.request].endings)
        require<NumericalError>(std::isfinite(ending.log_likelihood), "eval",
                                "the log-likelihood of an ending is {}, no finite number: the "
                                "model's weights are damaged, or overflow in this number format",
                                ending.log_likelihood);
      if (answered) answered(job.request, answers[job.request]);
    }
  };
  const LikelihoodLimits limits{.context = context_,
                                .tokens_a_pass = tokens_a_pass_,
                                .fill_up = keeps_all_rows_,
                                .shared = why_not_shared_.empty()};
  for (const LikelihoodCluster& cluster : likelihood_clusters(jobs, limits)) {
    DecodeState prefix;
    if (cluster.prefix > 0)
      prefix =
          scorer.read_prefix(jobs[cluster.begin].context.first(cluster.prefix), cluster.capacity);
    for (const LikelihoodBatch& batch : cluster.batches) {
      const auto part = std::span<const LikelihoodJob>(jobs).subspan(batch.begin, batch.count);
      if (limits.shared) {
        scorer.score_shared(part, cluster.prefix > 0 ? &prefix : nullptr, cluster.prefix);
      } else {
        scorer.score_whole(part);
      }
      finish(part);
    }
  }
  return answers;
}

}  // namespace fovea
