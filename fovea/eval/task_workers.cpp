// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/task_workers.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "fovea/base/error.h"
#include "fovea/eval/likelihood_parts.h"
#include "fovea/runtime/memory_limit.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

TaskProcesses::TaskProcesses(const TaskWorkerOptions& options)
    : workers_(options.workers),
      pool_({.where = "eval",
             .job_word = "",
             .command = options.command,
             .workers = static_cast<size_t>(options.workers),
             .life = WorkerPoolOptions::Life::many_jobs,
             .stop = options.stop,
             .heard = {},
             .finished =
                 [this](size_t job, const Json& line) {
                   const Answered answered = std::move(answered_.at(job));
                   answered_.erase(job);
                   answered(line);
                 },
             .died =
                 [](const WorkerDeath& death) {
                   return death.errors.empty() ? "" : "its stderr: " + death.errors;
                 },
             .warning = options.warning,
             .remedy = "with --out, the answers so far stay and the same command goes on; "
                       "--workers 1 asks in one process"}) {}

void TaskProcesses::ask(std::string name, const Json& part, Answered answered) {
  answered_.emplace(pool_.add({std::move(name), part.dump()}), std::move(answered));
}

bool TaskProcesses::wants_more() const { return std::cmp_less(pool_.waiting(), workers_); }

Json likelihood_part(const LikelihoodPart& part, int64_t tokens_a_pass, bool shared) {
  return {{"likelihoods", to_json(part)}, {"tokens_a_pass", tokens_a_pass}, {"shared", shared}};
}

std::vector<EndingScore> scores_of(const Json& answer) {
  return scores_from_json(answer.at("scores"));
}

Json text_part(std::span<const TextRequest> requests, int64_t context) {
  Json texts = Json::array();
  for (const TextRequest& request : requests)
    texts.push_back({{"tokens", request.tokens},
                     {"max_tokens", request.options.max_tokens},
                     {"temperature", request.options.sampling.temperature},
                     {"stop", request.options.stop}});
  return {{"texts", std::move(texts)}, {"context", context}};
}

std::vector<std::string> texts_of(const Json& answer) {
  return answer.at("texts").get<std::vector<std::string>>();
}

Json rolling_part(const std::string& text, int64_t window) {
  return {{"rolling", text}, {"window", window}};
}

ScoreTotals totals_of(const Json& answer) {
  const Json& nll = answer.at("nll");
  return {.nll = nll.is_number() ? nll.get<double>() : std::numeric_limits<double>::quiet_NaN(),
          .documents = 1,
          .tokens = answer.at("tokens").get<int64_t>(),
          .bytes = answer.at("bytes").get<int64_t>(),
          .words = answer.at("words").get<int64_t>()};
}

TaskPartAnswerer::TaskPartAnswerer(const Transformer& model, const Tokenizer& tokenizer,
                                   int64_t workers)
    : model_(model), tokenizer_(tokenizer), workers_(workers) {}

TaskPartAnswerer::~TaskPartAnswerer() = default;

std::string TaskPartAnswerer::answer(std::string_view line) {
  const Json part = Json::parse(line);
  Json answer{{"finished", true}};
  if (const auto likelihoods = part.find("likelihoods"); likelihoods != part.end()) {
    if (!scorer_)
      scorer_ = std::make_unique<LikelihoodScorer>(model_, part.at("tokens_a_pass").get<int64_t>(),
                                                   part.at("shared").get<bool>());
    const ReceivedPart received(*likelihoods);
    answer["scores"] = scores_to_json(scorer_->score(received.part()));
  } else if (part.contains("texts")) {
    answer["texts"] = answer_texts(part);
  } else {
    const std::vector<ScoreDocument> text{{"", part.at("rolling").get<std::string>()}};
    const ScoreTotals t =
        score_text(model_, tokenizer_, text, {.window = part.at("window").get<int64_t>()}).total;
    answer.update({{"nll", t.nll}, {"tokens", t.tokens}, {"bytes", t.bytes}, {"words", t.words}});
  }
  return answer.dump() + "\n";
}

Json TaskPartAnswerer::answer_texts(const Json& part) const {
  std::vector<TextRequest> requests;
  for (const Json& text : part.at("texts")) {
    requests.push_back({.prompt = {},
                        .options = {.sampling = {.temperature = text.at("temperature")},
                                    .max_tokens = text.at("max_tokens"),
                                    .stop = text.at("stop")},
                        .tokens = text.at("tokens").get<std::vector<int32_t>>()});
  }
  std::vector<std::string> texts(requests.size());
  // Half of the memory is for caches, as in one process.
  BatchOptions batch;
  batch.cache_bytes = memory_limit_bytes() / (2 * std::max<int64_t>(workers_, 1));
  generate_texts(
      model_, tokenizer_, requests, {.context = part.at("context").get<int64_t>()},
      [&](size_t n, const GenerateResult& result) { texts[n] = result.text; }, nullptr, batch);
  return texts;
}

}  // namespace fovea
