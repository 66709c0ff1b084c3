// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/loglikelihood.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "fovea/attention/cache/streams.h"
#include "fovea/base/error.h"
#include "fovea/eval/likelihood_parts.h"
#include "fovea/eval/likelihood_scorer.h"
#include "fovea/text/jinja/python_text.h"

namespace fovea {
namespace {

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

LikelihoodLimits LikelihoodEngine::limits() const {
  return {.context = context_,
          .tokens_a_pass = tokens_a_pass_,
          .fill_up = keeps_all_rows_,
          .shared = why_not_shared_.empty()};
}

std::vector<LikelihoodAnswer> LikelihoodEngine::score(std::span<const LikelihoodRequest> requests,
                                                      const Answered& answered) const {
  LikelihoodParts parts(limits(), requests, answered);
  LikelihoodScorer scorer(model_, tokens_a_pass_, why_not_shared_.empty());
  for (size_t n = 0; n < parts.size(); ++n) parts.take(n, scorer.score(parts.part(n)));
  return parts.answers();
}

}  // namespace fovea
