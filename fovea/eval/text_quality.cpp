// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/text_quality.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "fovea/base/error.h"
#include "fovea/eval/loglikelihood.h"
#include "fovea/text/result_json.h"

namespace fovea {
namespace {

struct Grams {
  int64_t all = 0;
  std::set<std::vector<int32_t>> different;

  void add(const std::vector<int32_t>& text, int64_t n) {
    for (auto at = text.begin(); text.end() - at >= n; ++at) {
      ++all;
      different.emplace(at, at + n);
    }
  }
  double share() const {
    return all == 0 ? 0.0 : static_cast<double>(different.size()) / static_cast<double>(all);
  }
};

/// A prompt and what was written behind it; the text is encoded anew, as any reader would.
struct Written {
  std::vector<LikelihoodRequest> requests;
  std::vector<std::vector<int32_t>> texts;
};

Written write_texts(const Transformer& model, const Tokenizer& tokenizer,
                    std::span<const TextRequest> requests, const TextQualityOptions& options) {
  Written written;
  generate_texts(
      model, tokenizer, requests, {},
      [&](size_t n, const GenerateResult& result) {
        require<Interrupted>(result.reason != FinishReason::interrupted, "eval",
                             "interrupted; {} of {} texts are written", n, requests.size());
        EncodedPair pair = encode_pair(tokenizer, requests[n].prompt, result.text);
        if (!pair.ending.empty()) {
          written.texts.push_back(pair.ending);
          written.requests.push_back(
              {.context = std::move(pair.context), .endings = {std::move(pair.ending)}});
        }
        if (options.progress) options.progress(static_cast<int64_t>(n) + 1, std::ssize(requests));
      },
      options.interrupt);
  return written;
}

}  // namespace

double distinct_share(std::span<const std::vector<int32_t>> texts, int64_t n) {
  Grams grams;
  for (const std::vector<int32_t>& text : texts) grams.add(text, n);
  return grams.share();
}

double repeated_share(std::span<const std::vector<int32_t>> texts, int64_t n) {
  double sum = 0.0;
  int64_t count = 0;
  for (const std::vector<int32_t>& text : texts) {
    Grams grams;
    grams.add(text, n);
    if (grams.all == 0) continue;
    sum += 1.0 - grams.share();
    ++count;
  }
  return count == 0 ? 0.0 : sum / static_cast<double>(count);
}

TextQuality measure_text_quality(const Transformer& model, const Tokenizer& tokenizer,
                                 std::span<const TextRequest> requests,
                                 const TextQualityOptions& options) {
  const Written written = write_texts(model, tokenizer, requests, options);
  require<InputError>(!written.texts.empty(), "eval",
                      "expected the model to write at least one token behind {} prompts; got none",
                      requests.size());
  TextQuality quality{.texts = std::ssize(written.texts)};
  for (int64_t n = 1; n <= 3; ++n) quality.distinct[n - 1] = distinct_share(written.texts, n);
  quality.repetition = repeated_share(written.texts, 4);
  const auto perplexity = [&](const Transformer& reader, int64_t& tokens, int64_t& greedy) {
    double nats = 0.0;
    tokens = greedy = 0;
    for (const LikelihoodAnswer& answer : LikelihoodEngine(reader).score(written.requests)) {
      const EndingScore& text = answer.endings.front();
      nats -= text.log_likelihood;
      tokens += text.tokens;
      greedy += text.greedy_tokens;
    }
    return std::exp(nats / static_cast<double>(tokens));
  };
  int64_t greedy = 0;
  quality.self_perplexity = perplexity(model, quality.tokens, greedy);
  if (options.base != nullptr) {
    int64_t tokens = 0;
    quality.base_perplexity = perplexity(*options.base, tokens, greedy);
    quality.agreement = static_cast<double>(greedy) / static_cast<double>(tokens);
  }
  return quality;
}

template <class V>
void describe(V& v, TextQuality& q) {
  v("texts", q.texts);
  v("tokens", q.tokens);
  v.derived("distinct", std::to_array(q.distinct));
  v("repetition_4", q.repetition);
  v("self_perplexity", q.self_perplexity);
  v.optional("agreement", q.agreement, q.agreement >= 0.0);
  v.optional("base_perplexity", q.base_perplexity, q.agreement >= 0.0);
}

nlohmann::ordered_json TextQuality::to_json() const { return described_json(*this); }

}  // namespace fovea
