// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/infer/sampling.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "fovea/attention/backend.h"
#include "fovea/base/error.h"
#include "fovea/config/reader.h"
#include "fovea/kernels/common/token_draws.h"

namespace fovea {
namespace {

constexpr const char* kNoNumber =
    "logits must be numbers; token {} has NaN: the weights are damaged";

constexpr uint64_t kSamplingStream = 0x67656E;  // keeps the draws apart from other users of a seed

bool likelier(const TokenProbability& a, const TokenProbability& b) {
  return a.probability > b.probability || (a.probability == b.probability && a.token < b.token);
}

/// Keeps the `k` likeliest, sorted.
void keep_top_k(std::vector<TokenProbability>& tokens, int64_t k) {
  const auto kept = static_cast<std::ptrdiff_t>(std::min(static_cast<size_t>(k), tokens.size()));
  std::partial_sort(tokens.begin(), tokens.begin() + kept, tokens.end(), likelier);
  tokens.resize(static_cast<size_t>(kept));
}

double total_of(const std::vector<TokenProbability>& tokens) {
  double total = 0;
  for (const TokenProbability& t : tokens) total += t.probability;
  return total;
}

/// Keeps the fewest tokens, likeliest first, whose share of the weight reaches `p`; at least one.
void keep_top_p(std::vector<TokenProbability>& tokens, double p) {
  const double total = total_of(tokens);
  // Tokens under this weight hold less than the share 1 - p all together, so that the sum reaches p
  // without any of them: they need no sorting.
  const double negligible = (1 - p) * total / static_cast<double>(tokens.size());
  std::erase_if(tokens, [&](const TokenProbability& t) { return t.probability < negligible; });
  std::sort(tokens.begin(), tokens.end(), likelier);
  double sum = 0;
  size_t kept = 0;
  while (kept < tokens.size() && (kept == 0 || sum < p * total)) sum += tokens[kept++].probability;
  tokens.resize(kept);
}

}  // namespace

void SamplingOptions::describe(FieldVisitor& v) {
  v.real({"temperature", "logits are divided by it; 0 = always the likeliest token", {0, 1e6}},
         temperature);
  v.integer({"top_k", "sample among the k likeliest tokens; 0 = all", ranges::kPositionCounts},
            top_k);
  v.real({"top_p", "sample among the fewest tokens whose probabilities reach p", {1e-9, 1}}, top_p);
  v.real(
      {"min_p", "sample among tokens at least p times as likely as the likeliest", ranges::kShare},
      min_p);
  v.real({"repetition_penalty",
          "divides positive logits of tokens in the text so far, multiplies "
          "negative ones; 1 = off",
          {1e-6, 1e6}},
         repetition_penalty);
  v.real({"frequency_penalty",
          "subtracted from a logit once for every time its token was generated; 0 = off",
          {-1e6, 1e6}},
         frequency_penalty);
  v.real({"presence_penalty",
          "subtracted once from the logit of a token that was generated; 0 = off",
          {-1e6, 1e6}},
         presence_penalty);
}

void SamplingOptions::check() const { check_fields("sampling", *this); }

Sampler::Sampler(const SamplingOptions& options, uint64_t seed, int64_t vocab_size)
    : options_(options),
      rng_(mix_seed(seed, kSamplingStream)),
      seen_(static_cast<size_t>(vocab_size)),
      generated_(static_cast<size_t>(vocab_size)) {
  options_.check();
}

void Sampler::add_prompt(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) seen_.at(static_cast<size_t>(token)) = 1;
}

at::Tensor Sampler::row_of(const at::Tensor& logits) const {
  const at::Tensor row = logits.to(at::kCPU, at::kFloat).contiguous();
  require<ShapeError>(row.numel() == static_cast<int64_t>(seen_.size()), "sampling",
                      "expected {} logits, one a token; got {}", seen_.size(), row.numel());
  return row;
}

bool Sampler::has_penalties() const {
  return options_.repetition_penalty != 1 || options_.frequency_penalty != 0 ||
         options_.presence_penalty != 0;
}

double Sampler::penalised(double l, size_t token) const {
  if (seen_[token] != 0)
    l = l > 0 ? l / options_.repetition_penalty : l * options_.repetition_penalty;
  l -= options_.frequency_penalty * generated_[token];
  return generated_[token] > 0 ? l - options_.presence_penalty : l;
}

std::vector<TokenProbability> Sampler::distribution(const at::Tensor& logits) const {
  const at::Tensor row = row_of(logits);
  const float* raw = row.const_data_ptr<float>();
  std::vector<TokenProbability> tokens(seen_.size());
  size_t best = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const double l = penalised(raw[i], i);
    require<NumericalError>(!std::isnan(l), "sampling", kNoNumber, i);
    tokens[i] = {static_cast<int32_t>(i), l};
    if (l > tokens[best].probability) best = i;
  }
  if (options_.temperature == 0) return {{tokens[best].token, 1.0}};
  const double highest = tokens[best].probability;
  for (TokenProbability& t : tokens) {
    t.probability = std::exp((t.probability - highest) / options_.temperature);
  }
  if (options_.top_k > 0) keep_top_k(tokens, options_.top_k);
  if (options_.top_p < 1) keep_top_p(tokens, options_.top_p);
  // The likeliest token has weight 1 here.
  if (options_.min_p > 0)
    std::erase_if(tokens, [&](const auto& t) { return t.probability < options_.min_p; });
  const double total = total_of(tokens);
  for (TokenProbability& t : tokens) t.probability /= total;
  return tokens;
}

int32_t Sampler::draw(std::span<const TokenProbability> tokens, double remaining) {
  int32_t chosen = tokens.front().token;
  for (const TokenProbability& t : tokens) {
    if (t.probability > 0) chosen = t.token;  // rounding must not end on an impossible one
    remaining -= t.probability;
    if (remaining < 0) break;
  }
  return chosen;
}

int32_t Sampler::draw_of_all(const at::Tensor& logits, double uniform) {
  const auto first_that = [this](const auto& holds) {
    return static_cast<size_t>(std::ranges::find_if(weights_, holds) - weights_.begin());
  };
  const at::Tensor row = row_of(logits);
  const std::span<const float> raw(row.const_data_ptr<float>(), seen_.size());
  weights_.assign(raw.begin(), raw.end());
  if (has_penalties())
    for (size_t i = 0; i < weights_.size(); ++i)
      weights_[i] = static_cast<float>(penalised(raw[i], i));
  const size_t count = weights_.size();
  float* const weights = weights_.data();
  float top = -std::numeric_limits<float>::infinity();
  int bad = 0;
#pragma omp simd reduction(max : top) reduction(| : bad)
  for (size_t i = 0; i < count; ++i) {
    top = weights[i] > top ? weights[i] : top;
    bad |= static_cast<int>(weights[i] != weights[i]);
  }
  require<NumericalError>(bad == 0, "sampling", kNoNumber,
                          first_that([](float l) { return l != l; }));
  const size_t likeliest = first_that([top](float l) { return l == top; });
  if (options_.temperature == 0 || std::isinf(top)) return static_cast<int32_t>(likeliest);

  at::from_blob(weights, {static_cast<int64_t>(count)}, at::kFloat)
      .sub_(top)
      .mul_(std::min(1.0 / options_.temperature, 1e30))
      .exp_();
  return static_cast<int32_t>(draw_by_weights(likeliest, uniform));
}

size_t Sampler::draw_by_weights(size_t likeliest, double uniform) const {
  const size_t count = weights_.size();
  const float* const weights = weights_.data();
  // Blocks whose sums are known make the draw a walk over blocks, then over one of them.
  constexpr size_t kBlock = 512;
  std::vector<double> sums;
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t end = std::min(begin + kBlock, count);
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (size_t i = begin; i < end; ++i) sum += weights[i];
    sums.push_back(sum);
  }
  double remaining = uniform * std::accumulate(sums.begin(), sums.end(), 0.0);
  size_t block = 0;
  while (block + 1 < sums.size() && remaining >= sums[block]) remaining -= sums[block++];
  size_t chosen = likeliest;
  for (size_t i = block * kBlock; i < std::min((block + 1) * kBlock, count); ++i) {
    if (weights[i] > 0) chosen = i;
    remaining -= weights[i];
    if (remaining < 0) break;
  }
  return chosen;
}

bool Sampler::draws_of_all() const {
  return options_.temperature == 0 ||
         (options_.top_k == 0 && options_.top_p >= 1 && options_.min_p == 0);
}

int32_t Sampler::draw_on_host(const at::Tensor& logits, double uniform) {
  return draws_of_all() ? draw_of_all(logits, uniform) : draw(distribution(logits), uniform);
}

void Sampler::count(int32_t token) {
  seen_[static_cast<size_t>(token)] = 1;
  ++generated_[static_cast<size_t>(token)];
}

int32_t Sampler::next(const at::Tensor& logits) {
  Sampler* const one = this;
  const DrawnToken drawn = next_tokens({&one, 1}, logits.unsqueeze(0)).front();
  if (drawn.error) std::rethrow_exception(drawn.error);
  return drawn.token;
}

/// One token of each text.
class TokenDrawing {
 public:
  TokenDrawing(std::span<Sampler* const> samplers, const at::Tensor& logits)
      : samplers_(samplers), logits_(logits), drawn_(samplers.size()) {
    for (Sampler* const sampler : samplers) uniform_.push_back(sampler->rng_.uniform());
  }

  std::vector<DrawnToken> run() {
    if (!logits_.is_cpu()) draw_there();
    draw_here();
    for (size_t n = 0; n < drawn_.size(); ++n)
      if (!drawn_[n].error) samplers_[n]->count(drawn_[n].token);
    return std::move(drawn_);
  }

 private:
  // Those that need no look at single logits. A text whose logits are no numbers stays without a
  // token: the host says what is wrong.
  void draw_there() {
    std::vector<int64_t> rows;
    std::vector<kernels::TokenDraw> draws;
    for (size_t n = 0; n < drawn_.size(); ++n) {
      const Sampler& sampler = *samplers_[n];
      if (!sampler.draws_of_all() || sampler.has_penalties() ||
          logits_.size(1) != std::ssize(sampler.seen_))
        continue;
      rows.push_back(static_cast<int64_t>(n));
      draws.push_back({sampler.options_.temperature, uniform_[n]});
    }
    if (rows.empty()) return;
    const at::Tensor logits =
        rows.size() == drawn_.size()
            ? logits_
            : logits_.index_select(0, at::tensor(rows, at::kLong).to(logits_.device()));
    const std::vector<int32_t> chosen = chosen_there(logits, draws);
    for (size_t i = 0; i < rows.size(); ++i) drawn_[static_cast<size_t>(rows[i])].token = chosen[i];
  }

  static std::vector<int32_t> chosen_there(const at::Tensor& logits,
                                           std::span<const kernels::TokenDraw> draws) {
    std::vector<int32_t> chosen(draws.size(), -1);
    const kernels::Backend* const backend = backend_of(logits.device());
    kernels::TokenDraws problem{
        .tokens = logits.size(1), .row = logits.stride(0), .texts = draws, .chosen = chosen};
    if (backend == nullptr || backend->why_not(problem) || logits.stride(1) != 1 ||
        logits.scalar_type() != at::kFloat)
      return chosen_by_operations(logits, draws);
    problem.logits = logits.const_data_ptr<float>();
    backend->run(problem);
    return chosen;
  }

  static std::vector<int32_t> chosen_by_operations(const at::Tensor& logits,
                                                   std::span<const kernels::TokenDraw> draws) {
    const auto column = [&](auto number) {
      std::vector<double> numbers;
      for (const kernels::TokenDraw& draw : draws) numbers.push_back(number(draw));
      return at::tensor(numbers, at::kDouble).unsqueeze(1).to(logits.device());
    };
    const at::Tensor l = logits.to(at::kDouble);
    const auto [top, likeliest] = l.max(1, /*keepdim=*/true);
    const at::Tensor temperature =
        column([](const auto& d) { return d.temperature > 0 ? d.temperature : 1.0; });
    const at::Tensor sums = at::cumsum(at::softmax(l / temperature, 1), 1);
    const at::Tensor before =
        sums.narrow(1, sums.size(1) - 1, 1) * column([](const auto& d) { return d.uniform; });
    const at::Tensor drawn = (sums <= before).sum(1, /*keepdim=*/true).clamp_max(l.size(1) - 1);
    const at::Tensor draws_one = column([](const auto& d) { return d.temperature > 0; }) > 0;
    const at::Tensor token = at::where(draws_one, drawn, likeliest);
    const at::Tensor chosen =
        at::where(at::isfinite(top), token, -1).squeeze(1).to(at::kInt).cpu().contiguous();
    const int32_t* const numbers = chosen.const_data_ptr<int32_t>();
    return {numbers, numbers + chosen.numel()};
  }

  void draw_here() {
    std::vector<int64_t> rows;
    for (size_t n = 0; n < drawn_.size(); ++n)
      if (drawn_[n].token < 0) rows.push_back(static_cast<int64_t>(n));
    if (rows.empty()) return;
    const at::Tensor logits = on_host(rows);
    at::parallel_for(0, std::ssize(rows), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto n = static_cast<size_t>(rows[static_cast<size_t>(i)]);
        try {
          drawn_[n].token = samplers_[n]->draw_on_host(
              logits[logits_.is_cpu() ? static_cast<int64_t>(n) : i], uniform_[n]);
        } catch (...) {
          drawn_[n].error = std::current_exception();
        }
      }
    });
  }
  // By way of pinned memory: logits of many texts are megabytes.
  at::Tensor on_host(const std::vector<int64_t>& rows) const {
    if (logits_.is_cpu()) return logits_;
    const at::Tensor from =
        logits_.index_select(0, at::tensor(rows, at::kLong).to(logits_.device()));
    return at::empty(from.sizes(),
                     at::TensorOptions(from.scalar_type()).pinned_memory(from.is_cuda()))
        .copy_(from);
  }

  const std::span<Sampler* const> samplers_;
  const at::Tensor& logits_;
  std::vector<double> uniform_;
  std::vector<DrawnToken> drawn_;
};

std::vector<DrawnToken> next_tokens(std::span<Sampler* const> samplers,
                                    const at::Tensor& logits_nv) {
  require<ShapeError>(logits_nv.dim() == 2 && logits_nv.size(0) == std::ssize(samplers), "sampling",
                      "expected logits [{}, tokens]; got {} rows", samplers.size(),
                      logits_nv.size(0));
  return TokenDrawing(samplers, logits_nv).run();
}

}  // namespace fovea
