// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/run_task.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "fovea/base/error.h"
#include "fovea/config/reader.h"
#include "fovea/eval/item_log.h"
#include "fovea/eval/likelihood_parts.h"
#include "fovea/eval/likelihood_scorer.h"
#include "fovea/eval/loglikelihood.h"
#include "fovea/eval/scoring.h"
#include "fovea/infer/generate.h"
#include "fovea/text/jinja/python_text.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

// Questions that are sorted and batched together; a large window has batches of one length.
constexpr int64_t kWindow = 256;
// A worker writes so many texts, eight at a time, before it takes the next ones.
constexpr size_t kTextsAPart = 16;
// Refusals that a result tells in words.
constexpr size_t kToldRefusals = 5;

/// A choice as acc_norm and acc_bytes measure it: without the space that it begins with (9.1).
std::string_view measured(std::string_view choice) {
  return choice.starts_with(' ') ? choice.substr(1) : choice;
}

size_t argmax(const std::vector<double>& values) {  // the first on ties
  return static_cast<size_t>(std::ranges::max_element(values) - values.begin());
}

std::string question_fingerprint(const TaskItem& item) {
  uint64_t hash = fingerprint(item.context);
  for (const auto* texts : {&item.contexts, &item.choices, &item.references}) {
    for (const std::string& text : *texts) hash = fingerprint(text, hash);
  }
  for (const bool label : item.labels) hash = fingerprint(label ? "1" : "0", hash);
  return hex64(hash);
}

ItemRecord record_of(const TaskItem& item) {
  return {.score = {.index = item.index, .group = item.group, .axes = item.axes},
          .question = question_fingerprint(item)};
}

/// How many of the choices are right: one, or those labelled so.
int64_t right_choices(const ItemRecord& record) {
  const auto labels = record.answer.find("labels");
  return labels == record.answer.end() ? 1 : std::ranges::count(*labels, Json(true));
}

/// The share of the probability of all endings that the true ones have.
double share_of_true(const std::vector<bool>& labels, const std::vector<double>& sums) {
  const double largest = std::ranges::max(sums);
  double of_true = 0.0, of_all = 0.0;
  for (size_t k = 0; k < sums.size(); ++k) {
    const double p = std::exp(sums[k] - largest);
    of_all += p;
    if (labels[k]) of_true += p;
  }
  return of_true / of_all;
}

/// Scores of a question with choices from its log-likelihoods.
void score_choices(const TaskItem& item, const std::vector<EndingScore>& endings,
                   ItemRecord& record) {
  std::vector<double> sums, by_characters, by_bytes;
  for (size_t k = 0; k < endings.size(); ++k) {
    const std::string_view choice = measured(item.choices[k]);
    const double sum = endings[k].log_likelihood;
    sums.push_back(sum);
    by_characters.push_back(sum / static_cast<double>(jinja::count_characters(choice)));
    by_bytes.push_back(sum / static_cast<double>(choice.size()));
  }
  if (!item.labels.empty()) {
    record.score.values = {{"mc2", share_of_true(item.labels, sums)}};
    record.answer = {{"labels", item.labels}, {"choice", argmax(sums)}, {"log_likelihoods", sums}};
    return;
  }
  const auto right = [&](const std::vector<double>& values) {
    return argmax(values) == static_cast<size_t>(item.gold) ? 1.0 : 0.0;
  };
  record.score.values = {{"acc", right(sums)}};
  record.answer = {{"gold", item.gold}, {"choice", argmax(sums)}, {"log_likelihoods", sums}};
  if (!item.contexts.empty()) return;  // the same ending throughout
  record.score.values.emplace_back("acc_norm", right(by_characters));
  record.score.values.emplace_back("acc_bytes", right(by_bytes));
  record.answer["choice_norm"] = argmax(by_characters);
}

void score_last_word(const EndingScore& word, ItemRecord& record) {
  record.score.values = {{"acc", word.greedy() ? 1.0 : 0.0},
                         {"nll", -word.log_likelihood},
                         {"tokens", static_cast<double>(word.tokens)}};
  record.answer = {{"log_likelihood", word.log_likelihood}, {"greedy", word.greedy()}};
}

/// One run of one task.
class TaskRun {
 public:
  TaskRun(const Transformer& model, const Tokenizer& tokenizer, const Task& task,
          const TaskInput& input, const TaskRunOptions& options)
      : model_(model),
        tokenizer_(tokenizer),
        task_(task),
        options_(options),
        engine_(model, {.context = options.context, .tokens_a_pass = options.tokens_a_pass}),
        scorer_(model, engine_.tokens_a_pass(), engine_.why_not_shared().empty()),
        items_(task.items(input)) {
    require<InputError>(items_.size > 0, "task " + task.name,
                        "expected at least one question; got none; check its data");
    if (!options.log.empty()) open_log(input);
  }

  TaskScore run() {
    const auto start = Clock::now();
    tell();
    std::vector<TaskItem> window;
    for (int64_t n = 0; n < items_.size; ++n) {
      if (answered_.contains(n)) continue;
      window.push_back(items_.make(n));
      window.back().index = n;
      if (std::ssize(window) < kWindow) continue;
      ask(window);
      window.clear();
    }
    ask(window);
    while (options_.workers != nullptr && options_.workers->busy()) work();
    if (log_) log_->finish();
    TaskScore score = summary();
    score.asked = asked_;
    score.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return score;
  }

 private:
  void open_log(const TaskInput& input) {
    const ComputeOptions& compute = model_.compute();
    Json settings{{"shots", input.shots},
                  {"seed", input.seed},
                  {"lengths", input.lengths},
                  {"context", engine_.context()},
                  {"dtype", at::toString(compute.dtype)},
                  {"attention", fields_to_json(model_.config().attention)},
                  {"focus", enum_name(compute.focus)},
                  {"focus_top_k", compute.focus_change.top_k}};
    if (!input.depths.empty()) settings["depths"] = input.depths;
    log_.emplace(options_.log, Json{{"task", task_.name},
                                    {"model", options_.model},
                                    {"parameters", model_fingerprint(model_)},
                                    {"settings", settings}});
    for (const ItemRecord& record : log_->earlier()) {
      const int64_t n = record.score.index;
      if (n < 0 || n >= items_.size) continue;
      require<InputError>(question_fingerprint(items_.make(n)) == record.question,
                          options_.log.string(),
                          "expected the questions of this task; question {} is another one there: "
                          "the data or the task have changed; choose another --out, or remove the "
                          "file to start anew",
                          n);
      answered_.insert(n);
      keep(record);
    }
  }

  void tell() const {
    if (options_.progress) options_.progress(std::ssize(answered_), items_.size);
    require<Interrupted>(options_.interrupt == nullptr || !*options_.interrupt, "eval",
                         "interrupted; {} of {} questions of {} are answered{}", answered_.size(),
                         items_.size, task_.name, log_ ? "; the same command goes on there" : "");
  }

  void keep(const ItemRecord& record) {
    contexts_cut_ += record.context_cut;
    if (record.refused.empty()) {
      scores_.push_back(record.score);
      if (const auto found = record.answer.find("log_likelihoods"); found != record.answer.end())
        chance_ += static_cast<double>(right_choices(record)) / static_cast<double>(found->size());
      return;
    }
    ++refused_;
    if (refusals_.size() < kToldRefusals)
      refusals_.push_back(fmt::format("question {}: {}", record.score.index, record.refused));
  }

  void take(const ItemRecord& record) {
    if (log_) log_->add(record);
    keep(record);
    answered_.insert(record.score.index);
    ++asked_;
    tell();
  }

  void refuse(const TaskItem& item, std::string why) {
    ItemRecord record = record_of(item);
    record.refused = std::move(why);
    take(record);
  }

  void ask(const std::vector<TaskItem>& items) {
    if (items.empty()) return;
    if (task_.kind == TaskKind::generate) {
      ask_texts(items);
    } else if (task_.kind == TaskKind::rolling) {
      ask_rolling(items);
    } else {
      ask_endings(items);
    }
    while (options_.workers != nullptr && !options_.workers->wants_more()) work();
  }

  void work() const {
    options_.workers->step();
    tell();
  }

  /// Has a worker compute a part.
  void send(const Json& part, TaskWorkers::Answered answered) {
    options_.workers->ask(fmt::format("{}, part {}", task_.name, ++parts_), part,
                          std::move(answered));
  }

  /// Requests of one question: one with all its endings, or one a context.
  std::vector<LikelihoodRequest> requests_of(const TaskItem& item) const {
    std::vector<LikelihoodRequest> requests;
    for (size_t k = 0; k < item.choices.size(); ++k) {
      EncodedPair pair = encode_pair(
          tokenizer_, item.contexts.empty() ? item.context : item.contexts[k], item.choices[k]);
      if (requests.empty() || !item.contexts.empty())
        requests.push_back({.context = std::move(pair.context)});
      requests.back().endings.push_back(std::move(pair.ending));
    }
    return requests;
  }

  std::string why_not(const TaskItem& item, const std::vector<LikelihoodRequest>& requests) const {
    for (size_t k = 0; k < item.choices.size(); ++k) {
      if (measured(item.choices[k]).empty()) return fmt::format("choice {} has no text", k);
    }
    for (const LikelihoodRequest& request : requests) {
      if (std::string why = engine_.why_not(request); !why.empty()) return why;
    }
    return "";
  }

  /// Questions with endings whose log-likelihoods are being computed.
  struct OpenQuestions {
    struct Place {
      size_t item = 0, first_ending = 0;
    };
    struct Waiting {
      size_t requests = 0;
      bool cut = false;
      std::vector<EndingScore> endings;
    };
    std::vector<TaskItem> items;
    std::vector<Waiting> waiting;  // by item
    std::vector<LikelihoodRequest> requests;
    std::vector<Place> places;  // by request
    std::optional<LikelihoodParts> parts;
  };

  void ask_endings(const std::vector<TaskItem>& items) {
    const auto open = std::make_shared<OpenQuestions>();
    open->items = items;
    open->waiting.resize(items.size());
    for (size_t i = 0; i < items.size(); ++i) {
      std::vector<LikelihoodRequest> of_item = requests_of(items[i]);
      if (std::string why = why_not(items[i], of_item); !why.empty()) {
        refuse(items[i], std::move(why));
        continue;
      }
      open->waiting[i] = {.requests = of_item.size(), .endings = {}};
      open->waiting[i].endings.resize(items[i].choices.size());
      for (size_t r = 0; r < of_item.size(); ++r) open->places.push_back({i, r});
      std::ranges::move(of_item, std::back_inserter(open->requests));
    }
    OpenQuestions* const questions = open.get();  // which must not own itself
    open->parts.emplace(engine_.limits(), open->requests,
                        [this, questions](size_t r, const LikelihoodAnswer& answer) {
                          take_endings(*questions, r, answer);
                        });
    for (size_t n = 0; n < open->parts->size(); ++n) {
      if (options_.workers == nullptr) {
        open->parts->take(n, scorer_.score(open->parts->part(n)));
        continue;
      }
      send(likelihood_part(open->parts->part(n), engine_.tokens_a_pass(),
                           engine_.why_not_shared().empty()),
           [open, n](const Json& answer) { open->parts->take(n, scores_of(answer)); });
    }
  }

  void take_endings(OpenQuestions& open, size_t r, const LikelihoodAnswer& answer) {
    const OpenQuestions::Place place = open.places[r];
    OpenQuestions::Waiting& mine = open.waiting[place.item];
    std::ranges::copy(answer.endings,
                      mine.endings.begin() + static_cast<ptrdiff_t>(place.first_ending));
    mine.cut = mine.cut || answer.context_cut;
    if (--mine.requests > 0) return;
    const TaskItem& item = open.items[place.item];
    ItemRecord record = record_of(item);
    record.context_cut = mine.cut;
    task_.kind == TaskKind::last_word ? score_last_word(mine.endings.front(), record)
                                      : score_choices(item, mine.endings, record);
    take(record);
  }

  /// Questions whose answers are being written.
  struct OpenTexts {
    std::vector<TaskItem> items;
    std::vector<bool> cut;
  };

  void ask_texts(const std::vector<TaskItem>& items) {
    // As the harness: the last tokens that leave room for the answer (9.1).
    const int64_t room = engine_.context() - task_.max_tokens;
    std::vector<TextRequest> requests;
    const auto open = std::make_shared<OpenTexts>();
    for (const TaskItem& item : items) {
      TextRequest request{.prompt = {},
                          .options = {.sampling = {.temperature = 0.0},
                                      .max_tokens = task_.max_tokens,
                                      .stop = task_.stop}};
      if (tokenizer_.bos() >= 0) request.tokens.push_back(tokenizer_.bos());
      tokenizer_.append(item.context, request.tokens);
      if (room < 1 || request.tokens.empty()) {
        refuse(item, room < 1 ? fmt::format("an answer of {} tokens leaves no room for a "
                                            "question in a context of {}",
                                            task_.max_tokens, engine_.context())
                              : "the question has no tokens");
        continue;
      }
      open->cut.push_back(std::ssize(request.tokens) > room);
      if (open->cut.back())
        request.tokens.erase(request.tokens.begin(), request.tokens.end() - room);
      requests.push_back(std::move(request));
      open->items.push_back(item);
    }
    if (options_.workers != nullptr) return send_texts(requests, open);
    generate_texts(
        model_, tokenizer_, requests, {.context = engine_.context()},
        [&](size_t n, const GenerateResult& result) {
          if (result.reason == FinishReason::interrupted) return tell();
          take_text(*open, n, result.text);
        },
        options_.interrupt);
  }

  /// Texts are the same in any company: parts of few texts go round evenly.
  void send_texts(std::span<const TextRequest> requests, const std::shared_ptr<OpenTexts>& open) {
    for (size_t from = 0; from < requests.size(); from += kTextsAPart) {
      const size_t count = std::min(kTextsAPart, requests.size() - from);
      send(text_part(requests.subspan(from, count), engine_.context()),
           [this, open, from](const Json& answer) {
             size_t n = from;
             for (const std::string& text : texts_of(answer)) take_text(*open, n++, text);
           });
    }
  }

  void take_text(const OpenTexts& open, size_t n, const std::string& text) {
    const TaskItem& item = open.items[n];
    ItemRecord record = record_of(item);
    record.context_cut = open.cut[n];
    for (const AnswerMetric& metric : task_.metrics)
      record.score.values.emplace_back(metric.name, metric.score(item, text));
    record.answer = {{"text", text}, {"references", item.references}};
    take(record);
  }

  void ask_rolling(const std::vector<TaskItem>& items) {
    for (const TaskItem& item : items) {
      if (options_.workers == nullptr) {
        const std::vector<ScoreDocument> text{{"", item.context}};
        take_totals(item,
                    score_text(model_, tokenizer_, text, {.window = engine_.context()}).total);
        continue;
      }
      send(rolling_part(item.context, engine_.context()),
           [this, item](const Json& answer) { take_totals(item, totals_of(answer)); });
    }
  }

  void take_totals(const TaskItem& item, const ScoreTotals& t) {
    ItemRecord record = record_of(item);
    record.score.values = {{"nll", t.nll},
                           {"words", static_cast<double>(t.words)},
                           {"bytes", static_cast<double>(t.bytes)},
                           {"tokens", static_cast<double>(t.tokens)}};
    take(record);
  }

  TaskScore summary() {
    require<InputError>(!scores_.empty(), "task " + task_.name,
                        "expected questions that can be asked; all {} are refused: {}", refused_,
                        refusals_.empty() ? "" : refusals_.front());
    std::ranges::sort(scores_, {}, &ItemScore::index);
    TaskScore score{.task = task_.name,
                    .title = task_.title,
                    .headline = task_.headline,
                    .chance = task_.chance,
                    .contexts_cut = contexts_cut_,
                    .refused = refused_,
                    .refusals = refusals_};
    score.add_items(scores_);
    if (score.headline.empty()) score.headline = score.metrics.front().name;
    if (score.chance < 0.0 && chance_ > 0.0)
      score.chance = chance_ / static_cast<double>(scores_.size());
    return score;
  }

  const Transformer& model_;
  const Tokenizer& tokenizer_;
  const Task& task_;
  const TaskRunOptions& options_;
  const LikelihoodEngine engine_;
  LikelihoodScorer scorer_;
  const TaskItems items_;
  std::optional<ItemLogWriter> log_;
  std::set<int64_t> answered_;
  std::vector<ItemScore> scores_;
  double chance_ = 0.0;  // summed over questions with choices
  int64_t contexts_cut_ = 0, refused_ = 0, asked_ = 0, parts_ = 0;
  std::vector<std::string> refusals_;
};

}  // namespace

TaskScore run_task(const Transformer& model, const Tokenizer& tokenizer, const Task& task,
                   const TaskInput& input, const TaskRunOptions& options) {
  return TaskRun(model, tokenizer, task, input, options).run();
}

std::string model_fingerprint(const Transformer& model) {
  constexpr int64_t kSample = 1024;
  uint64_t hash = 0;
  for (const Parameter& parameter : model.parameters().all()) {
    hash = fingerprint(
        fmt::format("{} {}", parameter.name, fmt::join(parameter.value.sizes(), ",")), hash);
    const at::Tensor flat = parameter.value.detach().flatten();
    const int64_t step = std::max<int64_t>(flat.numel() / kSample, 1);
    const at::Tensor sample = flat.slice(0, 0, std::nullopt, step).cpu().contiguous();
    hash = fingerprint(
        {static_cast<const char*>(sample.const_data_ptr()), static_cast<size_t>(sample.nbytes())},
        hash);
  }
  return hex64(hash);
}

}  // namespace fovea
