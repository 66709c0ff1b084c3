// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/claim_evidence.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "fovea/base/error.h"
#include "fovea/base/nearest_name.h"
#include "fovea/report/equivalence.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;
using SeedValues = std::map<int64_t, double>;

constexpr std::string_view kSeed = "{seed}";

double json_number(const Json& object, const std::string& key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>()
                                                     : std::numeric_limits<double>::quiet_NaN();
}

int64_t json_integer(const Json& object, const std::string& key) {
  const double value = json_number(object, key);
  return std::isfinite(value) ? static_cast<int64_t>(value) : 0;
}

std::string json_text(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

const Json& json_list(const Json& object, const char* key) {
  static const Json none = Json::array();
  const auto found = object.find(key);
  return found != object.end() && found->is_array() ? *found : none;
}

/// Values by seed of every variant, in the file's order.
struct Study {
  std::string file;
  std::vector<std::string> names;
  std::vector<SeedValues> values;
  std::vector<std::optional<PairedTest>> kept;  // the file's own test against `reference`
  std::vector<std::optional<SampleSummary>> samples;
  std::string reference;

  void add(const std::string& name, SeedValues values_by_seed = {}) {
    names.push_back(name);
    values.push_back(std::move(values_by_seed));
    kept.emplace_back();
    samples.emplace_back();
  }
  size_t place_of(const std::string& name) const {
    const auto found = std::ranges::find(names, name);
    require<InputError>(found != names.end(), file, "expected a variant '{}'{}; known: {}", name,
                        did_you_mean(name, names), fmt::join(names, ", "));
    return static_cast<size_t>(found - names.begin());
  }
};

/// The value of one run of compare.json.
double run_value(const Json& run, const std::string& value) {
  if (value == "bits_per_byte") return json_number(run, "validation_bits_per_byte");
  if (value == "perplexity") return std::log(json_number(run, "validation_perplexity"));
  double last = std::numeric_limits<double>::quiet_NaN();
  if (value == "ln_z_rms") {
    for (const Json& point : json_list(run, "curve"))
      if (point.contains(value)) last = json_number(point, value);
    return last;
  }
  if (value == "temperature_by_depth") {
    const Json& points = json_list(run, "temperature");
    const Json& layers = points.empty() ? points : json_list(points.back(), "per_layer");
    return layers.size() > 1 ? layers.back().get<double>() - layers.front().get<double>() : last;
  }
  if (!value.starts_with("task:")) return json_number(run, value);
  for (const Json& point : json_list(run, "tasks"))
    if (json_text(point, "task") == value.substr(5)) last = json_number(point, "value");
  return last;
}

Study study_of_variants(const Json& file, const EvidenceQuery& query) {
  Study study;
  for (const Json& variant : json_list(file, "variants")) {
    SeedValues values;
    for (const Json& run : json_list(variant, "runs")) {
      const double value = run_value(run, query.value);
      if (std::isfinite(value)) values[json_integer(run, "seed")] = value;
    }
    study.add(json_text(variant, "name"), std::move(values));
  }
  return study;
}

Study study_of_runs(const Json& file, const EvidenceQuery& query) {
  std::vector<std::string> order;
  std::map<std::string, SeedValues> by_name;
  for (const Json& run : json_list(file, "runs")) {
    const std::string name = json_text(run, "variant");
    if (!by_name.contains(name)) order.push_back(name);
    const bool logarithm = query.value.starts_with("log:");
    const double value = json_number(run, logarithm ? query.value.substr(4) : query.value);
    by_name[name][json_integer(run, "seed")] = logarithm ? std::log(value) : value;
  }
  Study study;
  for (const std::string& name : order) study.add(name, by_name[name]);
  return study;
}

Study study_of_rows(const Json& file) {
  Study study;
  study.reference = json_text(file, "reference");
  for (const Json& row : json_list(file, "rows")) {
    SeedValues values;
    for (const Json& value : json_list(row, "values"))
      values[static_cast<int64_t>(values.size())] = value.get<double>();
    study.add(json_text(row, "name"), std::move(values));
    const auto runs = json_integer(row, "runs");
    if (row.contains("difference")) {
      study.kept.back() =
          paired_t_test_of(json_number(row, "difference"), json_number(row, "error"), runs);
    }
    if (row.contains("deviation")) {
      study.samples.back() = SampleSummary{.mean = json_number(row, "mean"),
                                           .deviation = json_number(row, "deviation"),
                                           .count = runs};
    }
  }
  return study;
}

/// "Focus, top-1 (seed 2)" -> ("Focus, top-1 (seed {seed})", 2); "kernels 0" likewise. Without a
/// seed the name itself and -1.
std::pair<std::string, int64_t> without_seed(const std::string& name) {
  constexpr std::string_view kWord = "seed ";
  const size_t word = name.find(kWord), blank = name.rfind(' ');
  const bool one_digit_last = blank != std::string::npos && blank + 2 == name.size();
  size_t at = word != std::string::npos ? word + kWord.size() : name.size();
  int64_t seed = -1;
  const auto end_of_number = [&] {
    const char* const last = name.data() + name.size();
    const auto [end, error] = std::from_chars(name.data() + at, last, seed);
    return error == std::errc() && seed >= 0 ? static_cast<size_t>(end - name.data()) : at;
  };
  size_t end = end_of_number();
  if (end == at && one_digit_last) {
    at = blank + 1;
    end = end_of_number();
  }
  if (end == at) return {name, -1};
  return {name.substr(0, at) + std::string(kSeed) + name.substr(end), seed};
}

double system_value(const Json& score, const std::string& value) {
  if (value == "perplexity") return std::log(json_number(score, "perplexity"));
  if (value == "copy") return std::log(json_number(score, "copy_perplexity"));
  if (value == "needles") return json_number(score, "needles_found");
  return json_number(score, value);
}

const Json* score_at(const Json& system, int64_t length) {
  for (const Json& score : json_list(system, "scores"))
    if (length == 0 || json_integer(score, "length") == length) return &score;
  return nullptr;
}

/// The paired test that `fovea eval --systems` made of windows against its first system.
std::optional<PairedTest> test_of_windows(const Json& score) {
  const auto found = score.find("difference");
  if (found == score.end() || !found->is_object()) return std::nullopt;
  const double error = json_number(*found, "error");
  const auto windows = json_integer(*found, "windows");
  if (!std::isfinite(error) || windows < 2) return std::nullopt;
  return paired_t_test_of(json_number(*found, "nats"), error, windows);
}

Study study_of_systems(const Json& file, const EvidenceQuery& query) {
  const bool seeds = query.variant.find(kSeed) != std::string::npos;
  std::vector<std::string> order;
  std::map<std::string, SeedValues> by_name;
  Study study;
  for (const Json& system : json_list(file, "systems")) {
    const std::string name = json_text(system, "name");
    const Json* const score = score_at(system, query.length);
    const Json* const less =
        query.minus_length > 0 ? score_at(system, query.minus_length) : nullptr;
    if (score == nullptr || (query.minus_length > 0 && less == nullptr)) continue;
    double value = system_value(*score, query.value);
    if (less != nullptr) value -= system_value(*less, query.value);
    if (!seeds) {
      study.add(name, {{0, value}});
      if (query.value == "perplexity" && less == nullptr)
        study.kept.back() = test_of_windows(*score);
      if (study.reference.empty()) study.reference = name;
      continue;
    }
    const auto [pattern, seed] = without_seed(name);
    if (!by_name.contains(pattern)) order.push_back(pattern);
    by_name[pattern][seed] = value;
  }
  for (const std::string& name : order) study.add(name, by_name[name]);
  return study;
}

/// Differences over common seeds; a value without a seed (-1) serves every seed.
std::vector<double> differences(const SeedValues& first, const SeedValues& second) {
  std::vector<double> out;
  for (const auto& [seed, value] : first) {
    const auto own = second.find(seed), any = second.find(-1);
    if (own != second.end())
      out.push_back(value - own->second);
    else if (any != second.end())
      out.push_back(value - any->second);
  }
  return out;
}

PairedTest test_between(const Study& study, size_t variant, const EvidenceQuery& query) {
  const SeedValues& values = study.values[variant];
  if (query.against.empty()) {
    std::vector<double> out;
    for (const auto& [seed, value] : values) out.push_back(value - query.level);
    return paired_t_test(out);
  }
  const size_t against = study.place_of(query.against);
  if (study.kept[variant] && query.against == study.reference) return *study.kept[variant];
  const auto paired = differences(values, study.values[against]);
  if (!paired.empty()) return paired_t_test(paired);
  if (study.samples[variant] && study.samples[against])
    return welch_test(*study.samples[variant], *study.samples[against]);
  return {};
}

Evidence evidence_of(const Study& study, const EvidenceQuery& query) {
  const size_t asked = study.place_of(query.variant);
  Evidence out;
  for (size_t i = 0; i < study.names.size(); ++i) {
    if (i != asked && study.names[i] == query.against) continue;
    const PairedTest test = test_between(study, i, query);
    if (i == asked) {
      out.test = test;
      out.place = out.family.size();
    }
    if (i == asked || std::isfinite(test.p)) out.family.push_back(test);
  }
  require<InputError>(out.test.pairs > 0, study.file,
                      "expected '{}' of '{}' and '{}' with common seeds; there are none",
                      query.value, query.variant, query.against);
  return out;
}

Evidence evidence_of_benchmark(const Json& file, const EvidenceQuery& query,
                               const std::string& name) {
  std::vector<std::string> names;
  for (const char* list : {"results", "cases"}) {
    for (const Json& row : json_list(file, list)) {
      names.push_back(row.contains("name") ? json_text(row, "name")
                                           : fmt::format("{} at {}", json_text(row, "attention"),
                                                         json_integer(row, "position")));
      if (names.back() != query.variant) continue;
      const auto found = row.find(query.value);
      require<InputError>(found != row.end() && (found->is_object() || found->is_number()), name,
                          "expected '{}' of '{}' to be a number or quartiles", query.value,
                          query.variant);
      Evidence out;
      out.pairs_are = "rounds";
      const bool quartiles = found->is_object();
      out.test.mean =
          (quartiles ? json_number(*found, "median") : found->get<double>()) - query.level;
      out.quartiles = {
          (quartiles ? json_number(*found, "q1") : found->get<double>()) - query.level,
          (quartiles ? json_number(*found, "q3") : found->get<double>()) - query.level};
      out.test.pairs = std::max({json_integer(row, "pairs"), json_integer(row, "rounds"),
                                 json_integer(file, "rounds"), int64_t{1}});
      return out;
    }
  }
  fail<InputError>(name, "expected a row '{}'{}", query.variant,
                   did_you_mean(query.variant, names));
}

Evidence evidence_of_tasks(const Json& file, const EvidenceQuery& query, const std::string& name) {
  std::vector<std::string> names;
  Evidence out;
  out.pairs_are = "questions";
  for (const Json& row : json_list(file, "against")) {
    names.push_back(json_text(row, "task"));
    const int64_t questions = json_integer(row, "questions");
    require<InputError>(questions >= 2, name, "expected two questions of '{}' or more; got {}",
                        names.back(), questions);
    const double error = std::max(json_number(row, "error"), 1.0 / static_cast<double>(questions));
    out.family.push_back(paired_t_test_of(json_number(row, "difference"), error, questions));
  }
  if (query.variant == "mean") {
    out.family = {mean_of_tests(out.family)};
  } else {
    const auto found = std::ranges::find(names, query.variant);
    require<InputError>(found != names.end(), name, "expected a task '{}'{}", query.variant,
                        did_you_mean(query.variant, names));
    out.place = static_cast<size_t>(found - names.begin());
  }
  out.test = out.family[out.place];
  return out;
}

double corrected_at(const Evidence& evidence,
                    const std::function<double(const PairedTest&)>& p_of) {
  std::vector<double> p;
  size_t place = 0;
  for (size_t i = 0; i < evidence.family.size(); ++i) {
    const double value = p_of(evidence.family[i]);
    if (i == evidence.place) {
      if (!std::isfinite(value)) return std::numeric_limits<double>::quiet_NaN();
      place = p.size();
    }
    if (std::isfinite(value)) p.push_back(value);
  }
  if (p.empty()) return std::numeric_limits<double>::quiet_NaN();
  return holm_corrected(p)[place];
}

}  // namespace

void EvidenceQuery::describe(FieldVisitor& v) {
  v.text({"variant", "the row whose value the claim is about"}, variant);
  v.text({"against", "the row that it is compared with; empty: the number `level`"}, against);
  v.real({"level", "compared with, where `against` is empty"}, level);
  v.text({"value",
          "bits_per_byte, perplexity, ln_z_rms, temperature_by_depth, copy, needles, task:NAME, or "
          "a key of the file"},
         value);
  v.text({"at", "JSON pointer of the part of the file: /long; with {seed}: one part a training"},
         at);
  v.integer({"length", "of the systems' scores; 0 = the first", {0, int64_t{1} << 40}}, length);
  v.integer({"minus_length",
             "> 0: how much larger the difference is at `length` than here",
             {0, int64_t{1} << 40}},
            minus_length);
  v.text({"unit", "of the value, for people"}, unit);
}

bool Evidence::is_benchmark() const { return std::isfinite(quartiles.low); }

double Evidence::corrected_p() const {
  return corrected_at(*this, [](const PairedTest& t) { return t.p; });
}

double Evidence::p_below(double margin) const {
  return corrected_at(*this,
                      [&](const PairedTest& t) { return equivalence_test(t, margin).below; });
}

double Evidence::p_above(double margin) const {
  return corrected_at(*this,
                      [&](const PairedTest& t) { return equivalence_test(t, margin).above; });
}

double Evidence::p_equivalent(double margin) const {
  return corrected_at(*this, [&](const PairedTest& t) { return equivalence_test(t, margin).p(); });
}

namespace {

/// The evidence of one object of a result file.
Evidence evidence_of_part(const Json& file, const EvidenceQuery& query, const std::string& name) {
  if (file.contains("results") || file.contains("cases"))
    return evidence_of_benchmark(file, query, name);
  if (file.contains("against")) return evidence_of_tasks(file, query, name);
  Study study;
  std::string pairs = "seeds";
  if (file.contains("variants")) {
    study = study_of_variants(file, query);
  } else if (file.contains("systems")) {
    study = study_of_systems(file, query);
    if (query.variant.find(kSeed) == std::string::npos) pairs = "windows of text";
  } else if (file.contains("runs")) {
    study = study_of_runs(file, query);
  } else {
    require<InputError>(file.contains("rows"), name,
                        "expected one of the keys variants, systems, runs, rows, against, results");
    study = study_of_rows(file);
    if (file.contains("pairs")) pairs = json_text(file, "pairs");
  }
  study.file = name;
  Evidence out = evidence_of(study, query);
  out.pairs_are = pairs;
  return out;
}

/// Trainings of one thing, each with a part of the file, as one: test by test.
Evidence evidence_over(const std::vector<Evidence>& trainings, const std::string& name) {
  Evidence out = trainings.front();
  for (size_t i = 0; i < out.family.size(); ++i) {
    std::vector<PairedTest> tests;
    for (const Evidence& training : trainings) {
      require<InputError>(training.family.size() == out.family.size(), name,
                          "expected the same tests of every training; got {} and {}",
                          out.family.size(), training.family.size());
      tests.push_back(training.family[i]);
    }
    out.family[i] = test_over_trainings(tests);
  }
  out.test = out.family[out.place];
  out.pairs_are += fmt::format(" x {} trainings", trainings.size());
  return out;
}

}  // namespace

Evidence read_evidence(const Json& whole, const EvidenceQuery& query, const std::string& name) {
  require<InputError>(whole.is_object(), name, "expected a JSON object; got {}", whole.type_name());
  const bool is_one_part = whole.contains("variants") || whole.contains("against");
  const size_t seed = is_one_part ? std::string::npos : query.at.find(kSeed);
  std::vector<Evidence> trainings;
  do {
    std::string at = is_one_part ? "" : query.at;
    if (seed != std::string::npos) at.replace(seed, kSeed.size(), std::to_string(trainings.size()));
    const Json::json_pointer pointer(at);
    const bool there = whole.contains(pointer) && whole.at(pointer).is_object();
    if (!there && trainings.size() >= 2) break;
    require<InputError>(there, name, "expected an object at '{}'", at);
    trainings.push_back(evidence_of_part(whole.at(pointer), query, name));
  } while (seed != std::string::npos);
  return seed == std::string::npos ? trainings.front() : evidence_over(trainings, name);
}

}  // namespace fovea
