// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/loglikelihood.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "fovea/base/rng.h"
#include "tests/support/expect_error.h"
#include "tests/support/tiny_model.h"

namespace fovea::loglikelihood_test {
namespace {

using testing::tiny_config;

ModelConfig long_config() {
  ModelConfig config = tiny_config();
  config.context = 96;
  return config.resolved(config.vocab_size);
}

/// Log-likelihood of `ending` behind `context` from one plain forward pass in double logits.
EndingScore by_hand(const Transformer& model, const Tokens& context, const Tokens& ending) {
  std::vector<int64_t> inputs(context.begin(), context.end());
  inputs.insert(inputs.end(), ending.begin(), ending.end() - 1);
  const at::NoGradGuard no_grad;
  const at::Tensor logits =
      model.logits(model.hidden({.tokens_bt = at::tensor(inputs).unsqueeze(0)}))[0];
  const at::Tensor log_p = at::log_softmax(logits.to(at::kDouble), -1);
  EndingScore score{.tokens = std::ssize(ending)};
  for (size_t i = 0; i < ending.size(); ++i) {
    const at::Tensor row = log_p[static_cast<int64_t>(context.size() + i) - 1];
    score.log_likelihood += row[ending[i]].item<double>();
    score.greedy_tokens += row.argmax().item<int64_t>() == ending[i];
  }
  return score;
}

Tokens random_tokens(Rng& rng, size_t count) {
  Tokens tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng.below(256));
  return tokens;
}

/// Contexts of many lengths; every third begins with the same 40 tokens.
std::vector<LikelihoodRequest> many_requests() {
  Rng rng(3);
  const Tokens shared = random_tokens(rng, 40);
  std::vector<LikelihoodRequest> requests;
  for (size_t n = 0; n < 15; ++n) {
    LikelihoodRequest request;
    if (n % 3 == 0) request.context = shared;
    const Tokens own = random_tokens(rng, 1 + rng.below(20));
    request.context.insert(request.context.end(), own.begin(), own.end());
    for (size_t e = 0; e < 1 + n % 4; ++e)
      request.endings.push_back(random_tokens(rng, 1 + rng.below(9)));
    requests.push_back(std::move(request));
  }
  return requests;
}

void expect_as_by_hand(const Transformer& model, const LikelihoodOptions& options = {}) {
  const std::vector<LikelihoodRequest> requests = many_requests();
  const std::vector<LikelihoodAnswer> answers = LikelihoodEngine(model, options).score(requests);
  ASSERT_EQ(answers.size(), requests.size());
  for (size_t n = 0; n < requests.size(); ++n) {
    ASSERT_EQ(answers[n].endings.size(), requests[n].endings.size());
    EXPECT_FALSE(answers[n].context_cut);
    for (size_t e = 0; e < requests[n].endings.size(); ++e) {
      const EndingScore expected = by_hand(model, requests[n].context, requests[n].endings[e]);
      EXPECT_NEAR(answers[n].endings[e].log_likelihood, expected.log_likelihood, 1e-3)
          << n << " " << e;
      EXPECT_EQ(answers[n].endings[e].tokens, expected.tokens);
      EXPECT_EQ(answers[n].endings[e].greedy_tokens, expected.greedy_tokens);
    }
  }
}

TEST(Loglikelihood, SharedContextsScoreAsEveryEndingAlone) {
  const Transformer model(long_config(), 7);
  for (const int64_t tokens_a_pass : {1, 16, 90, 2048})
    expect_as_by_hand(model, {.tokens_a_pass = tokens_a_pass});
}

TEST(Loglikelihood, MechanismsAndWindowsScoreAsEveryEndingAlone) {
  ModelConfig window = long_config();
  window.attention.spec.mask.window = 8;  // its cache forgets rows
  expect_as_by_hand(Transformer(window.resolved(window.vocab_size), 7));
  ModelConfig multi_token = long_config();
  multi_token.attention.spec.multi_token.before = {.queries = 3, .keys = 5};
  expect_as_by_hand(Transformer(multi_token.resolved(multi_token.vocab_size), 7));
  ModelConfig focal = long_config();
  focal.attention.spec.temperature.value = 0.4;
  expect_as_by_hand(Transformer(focal.resolved(focal.vocab_size), 7));
}

TEST(Loglikelihood, ModelsWithoutACacheReadTheContextWithEveryEnding) {
  ModelConfig config = long_config();
  config.attention.spec.focus.gate = FocusSpec::Gate::hard;
  config.attention.spec.focus.groups = 4;
  config.attention.spec.focus.window = 4;
  Transformer model(config.resolved(config.vocab_size), 7);
  model.compute().focus = FocusMode::window;
  EXPECT_FALSE(LikelihoodEngine(model).why_not_shared().empty());
  expect_as_by_hand(model);
  expect_as_by_hand(model, {.tokens_a_pass = 100});
}

TEST(Loglikelihood, AnEndingIsGreedyWhereEveryTokenIsTheLikeliest) {
  const Transformer model(long_config(), 7);
  const Tokens context{72, 105};
  Tokens ending;
  const at::NoGradGuard no_grad;
  for (int n = 0; n < 4; ++n) {
    std::vector<int64_t> inputs(context.begin(), context.end());
    inputs.insert(inputs.end(), ending.begin(), ending.end());
    const at::Tensor states = model.hidden({.tokens_bt = at::tensor(inputs).unsqueeze(0)});
    ending.push_back(static_cast<int32_t>(model.logits(states)[0][-1].argmax().item<int64_t>()));
  }
  Tokens other = ending;
  other.back() = (other.back() + 1) % 256;
  const LikelihoodRequest request{.context = context, .endings = {ending, other}};
  const auto answers = LikelihoodEngine(model).score({&request, 1});
  EXPECT_TRUE(answers[0].endings[0].greedy());
  EXPECT_FALSE(answers[0].endings[1].greedy());
  EXPECT_EQ(answers[0].endings[1].greedy_tokens, 3);
}

TEST(Loglikelihood, OfALongContextTheLastTokensCountAndItIsTold) {
  const Transformer model(long_config(), 7);
  Rng rng(5);
  const LikelihoodRequest request{.context = random_tokens(rng, 30),
                                  .endings = {random_tokens(rng, 3), random_tokens(rng, 8)}};
  const auto answers = LikelihoodEngine(model, {.context = 20}).score({&request, 1});
  EXPECT_TRUE(answers[0].context_cut);
  for (size_t e = 0; e < 2; ++e) {
    // 20 + 1 tokens of context and ending are kept.
    const size_t kept = 21 - request.endings[e].size();
    const Tokens context(request.context.end() - static_cast<ptrdiff_t>(kept),
                         request.context.end());
    EXPECT_NEAR(answers[0].endings[e].log_likelihood,
                by_hand(model, context, request.endings[e]).log_likelihood, 1e-3);
  }
}

TEST(Loglikelihood, EndingsThatDoNotFitOrHaveNoTokensAreNamed) {
  const Transformer model(long_config(), 7);
  const LikelihoodEngine engine(model, {.context = 4});
  const LikelihoodRequest empty{.context = {1}, .endings = {{2}, {}}};
  const LikelihoodRequest wide{.context = {1}, .endings = {{1, 2, 3, 4, 5}}};
  EXPECT_NE(engine.why_not(empty).find("no tokens"), std::string::npos);
  EXPECT_NE(engine.why_not(wide).find("5 tokens"), std::string::npos);
  EXPECT_ERROR(ShapeError, engine.score({&empty, 1}), "1 to 4 tokens", "got 0");
  EXPECT_ERROR(ShapeError, engine.score({&wide, 1}), "1 to 4 tokens", "got 5");
}

TEST(Loglikelihood, EveryRequestIsAnsweredOnceAndWhole) {
  const Transformer model(long_config(), 7);
  const std::vector<LikelihoodRequest> requests = many_requests();
  std::vector<int> seen(requests.size(), 0);
  const auto answers = LikelihoodEngine(model, {.context = 30, .tokens_a_pass = 64})
                           .score(requests, [&](size_t n, const LikelihoodAnswer& answer) {
                             ++seen[n];
                             for (const EndingScore& e : answer.endings)
                               EXPECT_LT(e.log_likelihood, 0.0);
                           });
  EXPECT_EQ(seen, std::vector<int>(requests.size(), 1));
}

/// Bytes, but "ab" is one token; no marks unless given.
class PairTokenizer : public Tokenizer {
 public:
  explicit PairTokenizer(int32_t bos = -1, int32_t eos = -1) : bos_(bos), eos_(eos) {}
  std::string_view kind() const override { return "bytes"; }
  int64_t vocab_size() const override { return 259; }
  int32_t bos() const override { return bos_; }
  int32_t eos() const override { return eos_; }
  int32_t pad() const override { return -1; }
  std::vector<SpecialToken> special_tokens() const override { return {}; }
  void append(std::string_view text, std::vector<int32_t>& tokens) const override {
    for (size_t i = 0; i < text.size(); ++i) {
      const bool pair = text.substr(i, 2) == "ab";
      tokens.push_back(pair ? 256 : static_cast<uint8_t>(text[i]));
      i += pair;
    }
  }
  std::string_view piece(int32_t) const override { return ""; }
  TokenizerFile file() const override { return {}; }

 private:
  int32_t bos_, eos_;
};

TEST(EncodePair, MovesSpacesToTheEndingAndCutsTheTokensOfBoth) {
  const PairTokenizer plain;
  EncodedPair pair = encode_pair(plain, "x \n", " y");
  EXPECT_EQ(pair.context, (Tokens{'x'}));
  EXPECT_EQ(pair.ending, (Tokens{' ', '\n', ' ', 'y'}));
  // Tokens that cross the border belong to nobody: the ending is what stands behind len(tok(ctx)).
  pair = encode_pair(plain, "xa", "bc");
  EXPECT_EQ(pair.context, (Tokens{'x', 'a'}));
  EXPECT_EQ(pair.ending, (Tokens{'c'}));
  EXPECT_TRUE(encode_pair(plain, "xa", "b").ending.empty());
}

TEST(EncodePair, BeginsWithTheBeginMarkOnceAndReplacesAnEmptyContext) {
  EncodedPair pair = encode_pair(PairTokenizer(257, 258), "x", " y");
  EXPECT_EQ(pair.context, (Tokens{257, 'x'}));
  EXPECT_EQ(pair.ending, (Tokens{' ', 'y'}));
  EXPECT_EQ(encode_pair(PairTokenizer(257, 258), "", "y").context, (Tokens{257}));
  pair = encode_pair(PairTokenizer(-1, 258), " ", "y");
  EXPECT_EQ(pair.context, (Tokens{258}));
  EXPECT_EQ(pair.ending, (Tokens{' ', 'y'}));
  EXPECT_ERROR(InputError, encode_pair(PairTokenizer(), "", "y"), "begin nor an end mark");
}

}  // namespace
}  // namespace fovea::loglikelihood_test
