// JSON objects of UUIDs.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/made/key_value.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "fovea/base/error.h"
#include "fovea/data/records.h"
#include "fovea/eval/made/draw.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;
using Pair = std::pair<std::string, std::string>;

constexpr std::string_view kName = "json_kv";

std::string object_text(std::span<const Pair> pairs) {
  std::string text;
  for (size_t i = 0; i < pairs.size(); ++i)
    text += fmt::format("{}\"{}\": \"{}\"{}", i == 0 ? "{" : " ", pairs[i].first, pairs[i].second,
                        i + 1 < pairs.size() ? ",\n" : "}");
  return text;
}

std::string prompt(std::span<const Pair> pairs, int64_t asked, std::span<const int64_t> solved) {
  std::string demos;
  for (const int64_t i : solved) {
    const auto& [key, value] = pairs[static_cast<size_t>(i)];
    demos += fmt::format("Key: {}\nCorresponding value: {}\n\n", key, value);
  }
  return fmt::format(
      "{}\n\nExtract the value corresponding to the specified key in the JSON object below.\n\n"
      "{}Key: {}\nCorresponding value:",
      object_text(pairs), demos, pairs[static_cast<size_t>(asked)].first);
}

/// `count` different pairs other than `asked`, of the first `pairs`, where `draws` in [0, 1)
/// choose.
std::vector<int64_t> other_pairs(std::span<const double> draws, int64_t pairs, int64_t asked) {
  std::vector<int64_t> chosen, free;
  for (int64_t i = 0; i < pairs; ++i) {
    if (i != asked) free.push_back(i);
  }
  for (const double draw : draws) {
    const auto at = static_cast<std::ptrdiff_t>(draw * static_cast<double>(free.size()));
    chosen.push_back(free[static_cast<size_t>(at)]);
    free.erase(free.begin() + at);
  }
  return chosen;
}

std::vector<double> draws_of(Rng& rng, int64_t count) {
  std::vector<double> draws;
  for (int64_t i = 0; i < count; ++i) draws.push_back(rng.uniform());
  return draws;
}

/// The pairs of a sample: the one asked, and the others in the order in which they are taken.
class RandomPairs {
 public:
  explicit RandomPairs(Rng rng) : rng_(rng), asked_(draw_one()) {}
  const Pair& asked() const { return asked_; }
  /// `count` pairs, the one asked at `place`.
  std::vector<Pair> with(int64_t count, int64_t place) {
    while (std::ssize(others_) < count - 1) others_.push_back(draw_one());
    std::vector<Pair> pairs(others_.begin(), others_.begin() + (count - 1));
    pairs.insert(pairs.begin() + place, asked_);
    return pairs;
  }

 private:
  Pair draw_one() {
    std::string key = texts_(rng_);
    return {std::move(key), texts_(rng_)};
  }
  Rng rng_;
  DistinctDraws texts_{DrawKind::uuids};
  Pair asked_;
  std::vector<Pair> others_;
};

int64_t asked_pair(double depth, int64_t pairs) {
  return std::llround(depth * static_cast<double>(pairs - 1));
}

Pair parse_pair(const Json& value, const std::string& place) {
  require<InputError>(
      value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string(), place,
      "expected pairs of texts in 'ordered_kv_records'; got {}", value.type_name());
  return {value[0].get<std::string>(), value[1].get<std::string>()};
}

KeyValueRecord parse_record(const Json& record, const std::string& place) {
  for (const char* name : {"ordered_kv_records", "key", "value"})
    require<InputError>(record.contains(name), place, "expected a field '{}'; got none", name);
  const Json &list = record["ordered_kv_records"], &key = record["key"], &value = record["value"];
  require<InputError>(list.is_array() && key.is_string() && value.is_string(), place,
                      "expected a list in 'ordered_kv_records' and texts in 'key' and 'value'");
  KeyValueRecord read{.pairs = {}, .asked = -1};
  for (const Json& entry : list) {
    read.pairs.push_back(parse_pair(entry, place));
    if (read.pairs.back().first != key.get<std::string>()) continue;
    require<InputError>(read.asked < 0, place, "the key '{}' must stand in one pair; it is in two",
                        read.pairs.back().first);
    read.asked = std::ssize(read.pairs) - 1;
  }
  require<InputError>(read.asked >= 0 && read.pairs[static_cast<size_t>(read.asked)].second ==
                                             value.get<std::string>(),
                      place, "the key '{}' must stand in a pair with the value '{}'; it does not",
                      key.get<std::string>(), value.get<std::string>());
  return read;
}

}  // namespace

TaskItem key_value_question(const KeyValueTask& task, const MadeSample& sample) {
  check_sample(sample, kName);
  const int64_t least = task.shots + 1;
  require<ConfigError>(task.shots >= 0 && (task.pairs == 0 || task.pairs >= least), kName,
                       "there must be a pair for the question and one for each of the {} shots; "
                       "got {} pairs",
                       task.shots, task.pairs);
  Rng rng = random_numbers(sample, kName);
  const double depth = sample.depth.value_or(static_cast<double>(sample.number % kKeyValueDepths) /
                                             static_cast<double>(kKeyValueDepths - 1));
  const std::vector<double> draws = draws_of(rng, task.shots);
  RandomPairs pairs(rng);
  const auto build = [&](int64_t count) {
    const int64_t place = asked_pair(depth, count);
    return prompt(pairs.with(count, place), place, other_pairs(draws, count, place));
  };
  TaskItem item{.index = sample.number, .references = {pairs.asked().second}};
  if (task.pairs > 0) {
    item.context = build(task.pairs);
    item.axes = {{"pairs", static_cast<double>(task.pairs)}};
  } else {
    item.context = largest_prompt(sample, kName, kKeyValueAnswerTokens, least,
                                  std::numeric_limits<int32_t>::max(), build)
                       .text;
    item.axes = {{"length", static_cast<double>(sample.length)}};
  }
  item.axes["depth"] = depth;
  return item;
}

std::vector<KeyValueRecord> read_key_values(const std::filesystem::path& path) {
  const RecordFile file(path);
  std::vector<KeyValueRecord> records;
  for (int64_t n = 0; n < file.size(); ++n)
    records.push_back(parse_record(file.record(n), file.place(n)));
  require<InputError>(!records.empty(), path.filename().string(),
                      "expected rows of key-value pairs; got none");
  return records;
}

TaskItem key_value_question(const KeyValueRecord& record, int64_t shots, int64_t number,
                            uint64_t seed) {
  const int64_t pairs = std::ssize(record.pairs);
  require<ConfigError>(shots >= 0 && shots < pairs, kName,
                       "there must be a pair for the question and one for each of the {} shots; "
                       "got {} pairs",
                       shots, pairs);
  Rng rng(mix_seed(seed, static_cast<uint64_t>(number)));
  const std::vector<double> draws = draws_of(rng, shots);
  const double depth =
      pairs == 1 ? 0.0 : static_cast<double>(record.asked) / static_cast<double>(pairs - 1);
  return {
      .index = number,
      .context = prompt(record.pairs, record.asked, other_pairs(draws, pairs, record.asked)),
      .references = {record.pairs[static_cast<size_t>(record.asked)].second},
      .axes = {{"pairs", static_cast<double>(pairs)}, {"depth", std::round(depth * 10.0) / 10.0}}};
}

}  // namespace fovea
