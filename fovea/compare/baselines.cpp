// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/compare/baselines.h"

#include <fmt/format.h>

#include "fovea/data/ngram.h"
#include "fovea/report/format.h"
#include "fovea/train/stage_schedule.h"

namespace fovea {
namespace {

/// Inputs of all batches of a run; 0 where time ends a stage.
int64_t inputs_of(const std::vector<StageSchedule>& stages, int64_t accumulation) {
  int64_t inputs = 0;
  for (const StageSchedule& stage : stages) {
    if (stage.steps == 0) return 0;
    inputs += stage.steps * accumulation * stage.batch_rows * stage.sequence_length;
  }
  return inputs;
}

ByteNgrams fit_on_batches(const std::vector<StageSchedule>& stages, const Recipe& recipe,
                          int64_t seed, const std::shared_ptr<const Corpus>& corpus) {
  ByteNgrams ngrams;
  for (size_t s = 0; s < stages.size(); ++s) {
    BatchStream stream(corpus, stream_options(stages[s], s, seed));
    for (int64_t n = stages[s].steps * recipe.train.accumulation; n > 0; --n)
      ngrams.add(stream.next(), corpus->tokenizer());
  }
  return ngrams;
}

void add_scores(const ByteNgrams& ngrams, const std::vector<std::string>& names,
                std::string_view amount, const Tokenizer& tokenizer,
                const std::vector<ValidationSet>& sets, std::vector<CompareBaseline>& baselines) {
  for (const std::string& name : names) {
    const int order = name == "unigram" ? 1 : name == "bigram" ? 2 : 3;
    NgramScore total;
    for (const ValidationSet& set : sets) {
      const NgramScore score = ngrams.score(order, set, tokenizer);
      total.nats += score.nats;
      total.bytes += score.bytes;
    }
    const std::string size = bytes_text(static_cast<double>(ngrams.bytes()));
    baselines.push_back({.name = fmt::format("byte {} of {} {}", name, amount, size),
                         .bits_per_byte = total.bits_per_byte(),
                         .text_bytes = ngrams.bytes()});
  }
}

}  // namespace

std::vector<CompareBaseline> score_baselines(const std::vector<std::string>& names,
                                             const Recipe& recipe, int64_t seed,
                                             const std::shared_ptr<const Corpus>& corpus,
                                             const std::vector<ValidationSet>& sets) {
  std::vector<CompareBaseline> baselines;
  if (names.empty()) return baselines;
  const std::vector<StageSchedule> stages = stage_schedules(recipe);
  const int64_t inputs = inputs_of(stages, recipe.train.accumulation);
  int64_t all = 0;
  for (const CorpusSource& source : corpus->sources()) all += source.train_tokens;
  if (inputs > 0 && inputs < all) {
    add_scores(fit_on_batches(stages, recipe, seed, corpus), names, "the seen", corpus->tokenizer(),
               sets, baselines);
  }
  add_scores(fit_ngrams(*corpus), names, "all", corpus->tokenizer(), sets, baselines);
  return baselines;
}

}  // namespace fovea
