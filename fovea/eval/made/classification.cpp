// Prompts of examples with labels.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/made/classification.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/eval/made/draw.h"

namespace fovea {
namespace {

/// Texts in rounds of one of every label, drawn as they are needed.
class Rounds {
 public:
  Rounds(const std::vector<LabelledText>& texts, int64_t labels, Rng rng)
      : rng_(rng), of_label_(static_cast<size_t>(labels)) {
    for (size_t i = 0; i < texts.size(); ++i)
      of_label_[static_cast<size_t>(texts[i].label)].push_back(static_cast<int64_t>(i));
    for (auto& list : of_label_) shuffle(rng_, list);
  }
  /// Whether texts come again when those of a label are used up, or the label is left out then.
  enum class Repeat { yes, no };
  void add_round(Repeat repeat, std::vector<int64_t>& order) {
    std::vector<int64_t> round;
    for (const auto& list : of_label_) {
      if (list.empty() || (repeat == Repeat::no && round_ >= list.size())) continue;
      round.push_back(list[round_ % list.size()]);
    }
    shuffle(rng_, round);
    order.insert(order.end(), round.begin(), round.end());
    ++round_;
  }

 private:
  Rng rng_;
  std::vector<std::vector<int64_t>> of_label_;
  size_t round_ = 0;
};

}  // namespace

std::vector<int64_t> balanced_order(const std::vector<LabelledText>& texts, int64_t labels,
                                    uint64_t seed) {
  Rounds rounds(texts, labels, Rng(mix_seed(seed, 0x1C1)));
  std::vector<int64_t> order;
  while (order.size() < texts.size()) rounds.add_round(Rounds::Repeat::no, order);
  return order;
}

TaskItem classification_question(const ClassificationSet& set, int64_t test, int64_t shots,
                                 const MadeSample& sample) {
  const std::string name = "icl_" + set.name;
  check_sample(sample, name);
  const LabelledText& asked = set.test.at(static_cast<size_t>(test));
  require<ConfigError>(shots >= 0, name, "the shots must be 0 (as many as fit) or more; got {}",
                       shots);
  // The labels and the examples depend on the text and the seed, not on the question's number.
  const uint64_t seed = mix_seed(sample.seed, fingerprint(asked.text));
  const int64_t labels = std::ssize(set.labels);
  std::vector<int64_t> number_of_label(static_cast<size_t>(labels));
  std::iota(number_of_label.begin(), number_of_label.end(), 0);
  Rng rng(mix_seed(seed, 0));
  shuffle(rng, number_of_label);
  const auto number_of = [&](const LabelledText& t) {
    return number_of_label[static_cast<size_t>(t.label)];
  };

  Rounds rounds(set.train, labels, Rng(mix_seed(seed, 1)));
  std::vector<int64_t> examples;
  const auto build = [&](int64_t count) {
    while (std::ssize(examples) < count) rounds.add_round(Rounds::Repeat::yes, examples);
    std::string text =
        "Use the provided mapping from the text to label to assign a label to the text. Only "
        "output \"label: {label}\" and nothing else. \n\n";
    for (int64_t i = 0; i < count; ++i) {
      const LabelledText& t = set.train[static_cast<size_t>(examples[static_cast<size_t>(i)])];
      text += fmt::format("{}\nlabel: {}\n\n", t.text, number_of(t));
    }
    return text + asked.text + "\nlabel:";
  };
  TaskItem item{.index = sample.number, .references = {std::to_string(number_of(asked))}};
  if (shots > 0) {
    item.context = build(shots);
    item.axes = {{"shots", static_cast<double>(shots)}};
  } else {
    item.context = largest_prompt(sample, name, kClassificationAnswerTokens, 1,
                                  std::numeric_limits<int32_t>::max(), build)
                       .text;
    item.axes = {{"length", static_cast<double>(sample.length)}};
  }
  return item;
}

}  // namespace fovea
