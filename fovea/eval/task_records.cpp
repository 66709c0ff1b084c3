// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/task_records.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/base/paths.h"
#include "fovea/base/rng.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

/// The texts of a list; one value is a list of one where `single` allows it.
std::vector<std::string> texts_of(const Json& value, const char* key, const std::string& place,
                                  bool single = false) {
  if (single && !value.is_array()) return {text_of(value)};
  require<InputError>(value.is_array() && !value.empty(), place,
                      "expected '{}' to give a list of texts; got {}", key, value.dump());
  std::vector<std::string> texts;
  for (const Json& entry : value) texts.push_back(text_of(entry));
  return texts;
}

/// The number of the right choice, given as a number, its digits or its text.
int64_t gold_of(const Json& value, const std::vector<std::string>& choices,
                const std::string& place) {
  const auto count = std::ssize(choices);
  int64_t gold = -1;
  if (value.is_number_integer()) {
    gold = value.get<int64_t>();
  } else {
    const std::string text = text_of(value);
    const auto same = std::ranges::find(choices, text);
    if (same != choices.end()) {
      gold = same - choices.begin();
    } else if (!text.empty() && text.size() < 4 &&
               text.find_first_not_of("0123456789") == std::string::npos) {
      gold = std::stoll(text);
    }
  }
  require<InputError>(gold >= 0 && gold < count, place,
                      "expected 'gold' to be a number from 0 to {} or the text of a choice; got {}",
                      count - 1, value.dump());
  return gold;
}

/// One truth value a choice, at least one of them true.
std::vector<bool> labels_of(const Json& value, size_t choices, const std::string& place) {
  std::vector<bool> labels;
  bool good = value.is_array() && value.size() == choices;
  for (size_t k = 0; good && k < choices; ++k) {
    const Json& label = value[k];
    good = label.is_boolean() || label == 0 || label == 1;
    if (good) labels.push_back(label.is_boolean() ? label.get<bool>() : label == 1);
  }
  require<InputError>(good && std::ranges::find(labels, true) != labels.end(), place,
                      "expected 'labels' to give 1 or 0 for each of {} choices, and at least one "
                      "1; got {}",
                      choices, value.dump());
  return labels;
}

RecordTemplate compiled(RecordTemplate::Form form, const std::string& source,
                        const std::string& name, const char* key) {
  if (source.empty()) return {};
  try {
    return {form, source, fmt::format("{}: {}", name, key)};
  } catch (const InputError& error) {  // a template is part of a config
    throw ConfigError(error.what());
  }
}

/// The first of `names` that exists in the folder of the data.
fs::path find_data(const std::vector<std::string>& names, const fs::path& folder,
                   const std::string& task) {
  for (const std::string& name : names) {
    const fs::path path = fs::path(name).is_absolute() ? fs::path(name) : folder / name;
    if (is_file(path)) return path;
  }
  fail<InputError>("task " + task,
                   "expected {} in '{}'; got no such file; give the folder of the "
                   "data with --data",
                   fmt::join(names, " or "), folder.empty() ? "." : folder.string());
}

}  // namespace

CompiledForm::CompiledForm(const TaskForm& form, const std::string& name) {
  using Form = RecordTemplate::Form;
  context = compiled(Form::text, form.context, name, "context");
  contexts = compiled(Form::expression, form.contexts, name, "contexts");
  choices = compiled(Form::expression, form.choices, name, "choices");
  labels = compiled(Form::expression, form.labels, name, "labels");
  ending = compiled(Form::text, form.ending, name, "ending");
  gold = compiled(Form::expression, form.gold, name, "gold");
  target = compiled(Form::text, form.target, name, "target");
  references = compiled(Form::expression, form.references, name, "references");
  group = compiled(Form::text, form.group, name, "group");
  for (const RecordTemplate* part :
       {&context, &contexts, &choices, &labels, &ending, &gold, &target, &references, &group}) {
    for (const std::string& field : part->fields()) {
      if (std::ranges::find(fields, field) == fields.end()) fields.push_back(field);
    }
  }
}

const CompiledForm& RecordQuestions::form_of(const Json& record, const std::string& place) const {
  std::vector<std::string> wanted;
  for (const CompiledForm& form : *forms_) {
    const auto missing = std::ranges::find_if(
        form.fields, [&](const std::string& field) { return !record.contains(field); });
    if (missing == form.fields.end()) return form;
    wanted.push_back(fmt::format("{}", fmt::join(form.fields, ", ")));
  }
  std::vector<std::string> got;
  for (const auto& [key, value] : record.items()) got.push_back(key);
  fail<InputError>(place,
                   "task {}: expected a record with the fields {}; got {}; correct the data "
                   "or the task's templates",
                   file_.name, fmt::join(wanted, " or "),
                   got.empty() ? "none" : fmt::format("{}", fmt::join(got, ", ")));
}

std::string RecordQuestions::clean(std::string text) const {
  return file_.clean == TextCleaning::hellaswag ? cleaned_hellaswag(text) : text;
}

void RecordQuestions::read_choices(const CompiledForm& form, const Json& record,
                                   const std::string& place, TaskItem& item) const {
  std::vector<std::string> raw;
  if (file_.kind == TaskKind::partial) {
    raw = texts_of(form.contexts.evaluate(record, place), "contexts", place);
    item.choices.assign(raw.size(), file_.delimiter + form.ending.render(record, place));
    for (const std::string& context : raw) item.contexts.push_back(clean(context));
  } else {
    raw = texts_of(form.choices.evaluate(record, place), "choices", place);
    for (const std::string& choice : raw) item.choices.push_back(file_.delimiter + clean(choice));
  }
  require<InputError>(raw.size() > 1, place, "expected at least two choices; got {}", raw.size());
  if (file_.kind == TaskKind::multiple_true) {
    item.labels = labels_of(form.labels.evaluate(record, place), raw.size(), place);
    item.gold = std::ranges::find(item.labels, true) - item.labels.begin();
  } else {
    item.gold = gold_of(form.gold.evaluate(record, place), raw, place);
  }
}

RecordQuestion RecordQuestions::question(int64_t n) const {
  const std::string place = records_.place(n);
  const Json record = records_.record(n);
  const CompiledForm& form = form_of(record, place);
  RecordQuestion made;
  TaskItem& item = made.item;
  item.index = n;
  if (!form.context.empty()) item.context = clean(form.context.render(record, place));
  if (!form.group.empty()) item.group = form.group.render(record, place);
  switch (file_.kind) {
    case TaskKind::multiple_choice:
    case TaskKind::multiple_true:
      read_choices(form, record, place, item);
      made.shot = item.context + item.choices[static_cast<size_t>(item.gold)];
      break;
    case TaskKind::partial:
      read_choices(form, record, place, item);
      made.shot = item.contexts[static_cast<size_t>(item.gold)] + item.choices.front();
      break;
    case TaskKind::last_word:
      item.choices = {file_.delimiter + form.ending.render(record, place)};
      item.gold = 0;
      made.shot = item.context + item.choices.front();
      break;
    case TaskKind::generate: {
      item.references =
          texts_of(form.references.evaluate(record, place), "references", place, true);
      const std::string target =
          form.target.empty() ? item.references.front() : form.target.render(record, place);
      made.shot = item.context + file_.delimiter + target;
      break;
    }
    case TaskKind::rolling:
      require<InputError>(!item.context.empty(), place, "expected a text to score; got none");
      break;
  }
  return made;
}

Shots::Shots(const TaskFile& file, int64_t count, uint64_t seed,
             std::shared_ptr<const RecordQuestions> source)
    : settings_(file.shots),
      delimiter_(file.delimiter),
      count_(count),
      seed_(seed),
      source_(std::move(source)) {
  if (count_ == 0) return;
  if (source_ == nullptr) {
    for (const ShotExample& example : settings_.examples)
      shots_.push_back(example.context + delimiter_ + example.target);
  } else {
    for (int64_t n = 0; n < source_->size(); ++n) {
      RecordQuestion made = source_->question(n);
      shots_.push_back(std::move(made.shot));
      if (settings_.same_group) by_group_[made.item.group].push_back(n);
    }
  }
  for (int64_t n = 0; !settings_.same_group && n < std::ssize(shots_); ++n)
    by_group_[""].push_back(n);
  require<InputError>(std::ssize(shots_) >= count_, "task " + file.name,
                      "expected at least {} solved examples for the shots; got {}; lower --shots",
                      count_, shots_.size());
}

std::vector<int64_t> Shots::chosen(int64_t n, const RecordQuestion& question) const {
  const auto found = by_group_.find(settings_.same_group ? question.item.group : "");
  std::vector<int64_t> pool = found == by_group_.end() ? std::vector<int64_t>{} : found->second;
  // A question is no shot of itself.
  std::erase_if(pool, [&](int64_t shot) {
    return source_ != nullptr && shots_[static_cast<size_t>(shot)] == question.shot;
  });
  require<InputError>(
      std::ssize(pool) >= count_, fmt::format("question {}", n),
      "expected at least {} solved examples{}; got {}; lower --shots", count_,
      settings_.same_group ? fmt::format(" of the group '{}'", question.item.group) : std::string(),
      pool.size());
  if (settings_.order == ShotOrder::drawn && source_ != nullptr) {
    Rng rng(mix_seed(seed_, static_cast<uint64_t>(n)));
    for (int64_t i = 0; i < count_; ++i) {
      const auto rest = static_cast<uint64_t>(std::ssize(pool) - i);
      std::swap(pool[static_cast<size_t>(i)],
                pool[static_cast<size_t>(i) + static_cast<size_t>(rng.below(rest))]);
    }
  }
  pool.resize(static_cast<size_t>(count_));
  return pool;
}

std::string Shots::before(int64_t n, const RecordQuestion& question) const {
  std::string text;
  if (count_ == 0) return text;
  for (const int64_t shot : chosen(n, question))
    text += shots_[static_cast<size_t>(shot)] + settings_.separator;
  return text;
}

Task make_task(const TaskFile& file, const fs::path& home) {
  auto forms = std::make_shared<std::vector<CompiledForm>>();
  for (const TaskForm& form : file.forms) forms->emplace_back(form, file.name);
  Task task{.name = file.name,
            .title = file.title,
            .kind = file.kind,
            .headline = file.headline,
            .stop = file.stop,
            .max_tokens = file.max_tokens};
  for (const AnswerMetricSettings& metric : file.metrics)
    task.metrics.push_back(make_answer_metric(metric));
  const auto description =
      compiled(RecordTemplate::Form::text, file.description, file.name, "description");
  task.items = [file, home, forms, description](const TaskInput& input) {
    const fs::path folder = input.data.empty() ? home : input.data;
    const auto open = [&](const std::vector<std::string>& names) {
      return std::make_shared<const RecordQuestions>(
          file, forms, RecordFile(find_data(names, folder, file.name), file.columns));
    };
    const auto questions = open(file.data);
    const int64_t count = input.shots >= 0 ? input.shots : file.shots.count;
    std::shared_ptr<const RecordQuestions> source;
    if (count > 0 && file.shots.examples.empty())
      source = file.shots.data.empty() ? questions : open(file.shots.data);
    const auto shots = std::make_shared<const Shots>(file, count, input.seed, source);
    TaskItems items{.size = questions->size()};
    if (input.limit > 0) items.size = std::min(items.size, input.limit);
    items.make = [questions, shots, description](int64_t n) {
      RecordQuestion made = questions->question(n);
      // The description may name the group ("... about {{group}}.").
      const Json about{{"group", made.item.group}};
      const std::string before =
          (description.empty() ? "" : description.render(about, fmt::format("question {}", n))) +
          shots->before(n, made);
      for (std::string& context : made.item.contexts) context.insert(0, before);
      if (made.item.contexts.empty()) made.item.context.insert(0, before);
      return std::move(made.item);
    };
    // Bad records are found before the model works for an hour.
    for (int64_t n = 0; n < items.size; ++n) items.make(n);
    return items;
  };
  return task;
}

}  // namespace fovea
