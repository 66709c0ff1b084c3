// compare.json: one list of keys per struct serves writing and reading.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/compare_result.h"
#include "fovea/base/json_depth.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/report/format.h"
#include "fovea/report/scaling.h"
#include "fovea/text/result_json.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kBudgetNames[] = {"tokens", "time", "parameters"};
constexpr std::string_view kVerdictNames[] = {
    "reference", "better", "worse", "as good", "inside the spread", "one seed", "incomplete"};

}  // namespace

template <class V>
void describe(V& v, CurvePoint& p) {
  v("step", p.step);
  v("tokens", p.tokens);
  v.optional("seconds", p.seconds);
  v("train_loss", p.train_loss);
  v.optional("ln_z", p.ln_z, std::isfinite(p.ln_z));
  v.optional("ln_z_rms", p.ln_z_rms, std::isfinite(p.ln_z_rms));
}

template <class V>
void describe(V& v, ValidationPoint& p) {
  v("step", p.step);
  v("tokens", p.tokens);
  v("bits_per_byte", p.bits_per_byte);
}

template <class V>
void describe(V& v, TemperaturePoint& p) {
  v("step", p.step);
  v("per_layer", p.per_layer);
  v("clipped_share", p.clipped_share);
}

template <class V>
void describe(V& v, TaskPoint& p) {
  v("task", p.task);
  v("metric", p.metric);
  v("step", p.step);
  v("value", p.value);
  v("error", p.error);
  v("items", p.items);
}

template <class V>
void describe(V& v, CompareRun& r) {
  v("seed", r.seed);
  v("validation_bits_per_byte", r.validation_bits_per_byte);
  v.optional("validation_perplexity", r.validation_perplexity);
  v.optional("validation_loss", r.validation_loss);
  v("tokens", r.tokens);
  v.optional("seconds", r.seconds);
  v.optional("tokens_per_second", r.tokens_per_second);
  v.optional("peak_memory_bytes", r.peak_memory_bytes);
  v.optional("attention_path", r.attention_path);
  v.optional("failure", r.failure);
  v.optional("curve", r.curve);
  v.optional("validation_curve", r.validation_curve);
  v.optional("temperature", r.temperature);
  v.optional("tasks", r.tasks);
}

template <class V>
void describe(V& v, Spread& s) {
  v("mean", s.mean);
  v("min", s.min);
  v("max", s.max);
  v("standard_deviation", s.standard_deviation);
}

template <class V>
void describe(V& v, Interval& i) {
  v("low", i.low);
  v("high", i.high);
}

template <class V>
void describe(V& v, VariantSummary& s) {
  v("finished_runs", s.finished_runs);
  v("bits_per_byte", s.bits_per_byte);
  v("perplexity", s.perplexity);
  v("tokens_per_second", s.tokens_per_second);
  v("peak_memory_bytes", s.peak_memory_bytes);
  v("verdict", s.verdict);
  v("pairs", s.pairs);
  v("difference", s.difference);
  v("difference_error", s.difference_error);
  v("difference_interval", s.difference_interval);
  v("p", s.p);
  v("corrected_p", s.corrected_p);
  v.optional("equivalence_p", s.equivalence_p, std::isfinite(s.equivalence_p));
  v("pairs_needed", s.pairs_needed);
}

template <class V>
void describe(V& v, TextSample& s) {
  v("prompt", s.prompt);
  v("text", s.text);
}

template <class V>
void describe(V& v, AttentionMap& m) {
  v("layer", m.layer);
  v("head", m.head);
  v("tokens", m.tokens);
  v("rows", m.rows);
}

template <class V>
void describe(V& v, CompareVariant& c) {
  v("name", c.name);
  v.optional("description", c.description);
  v.optional("family", c.family);
  v("parameters", c.parameters);
  v.optional("config", c.config);
  v("runs", c.runs);
  v.derived("summary", c.summary);
  v.optional("sample", c.sample);
  v.optional("attention_maps", c.attention_maps);
}

template <class V>
void describe(V& v, CompareBaseline& b) {
  v("name", b.name);
  v("bits_per_byte", b.bits_per_byte);
  v.optional("text_bytes", b.text_bytes);
}

template <class V>
void describe(V& v, MachineInfo& m) {
  v("cpu", m.cpu);
  v("cores", m.cores);
  v("isa", m.isa);
  v.optional("device", m.device);
  v.optional("memory_bytes", m.memory_bytes);
}

template <class V>
void describe(V& v, DataInfo& d) {
  v("sources", d.sources);
  v("bytes", d.bytes);
  v("documents", d.documents);
  v("validation_bytes", d.validation_bytes);
  v("fingerprint", d.fingerprint);
}

template <class V>
void describe(V& v, TuningPoint& p) {
  v("variant", p.variant);
  v("value", p.value);
  v("bits_per_byte", p.bits_per_byte);
  v("chosen", p.chosen);
}

template <class V>
void describe(V& v, SpeedsAlone& s) {
  v("seconds", s.seconds);
  v("threads", s.threads);
}

template <class V>
void describe(V& v, RunOrigin& o) {
  v("machine", o.machine);
  v("code_version", o.code_version);
  v("created", o.created);
  v("seeds", o.seeds);
  v.optional("variants", o.variants);
}

template <class V>
void describe(V& v, CompareResult& r) {
  v("title", r.title);
  v("budget", r.budget);
  v("budget_amount", r.budget_amount);
  v("created", r.created);
  v.optional("command", r.command);
  v.optional("dtype", r.dtype);
  v("machine", r.machine);
  v("code_version", r.code_version);
  v("torch_version", r.torch_version);
  v("data", r.data);
  v("reference", r.reference);
  v.optional("equivalence_margin", r.equivalence_margin, r.equivalence_margin > 0);
  v.optional("tuned_key", r.tuned_key, !r.tuned_key.empty());
  v.optional("tuning_seed", r.tuning_seed, !r.tuned_key.empty());
  v.optional("tuning", r.tuning, !r.tuning.empty());
  v.optional("origins", r.origins, !r.origins.empty());
  v.optional("workers", r.workers, r.workers > 1);
  v.optional("speeds_alone", r.speeds_alone, r.speeds_alone.seconds > 0);
  v.optional("baselines", r.baselines);
  v("variants", r.variants);
}

namespace {

void check_map(const AttentionMap& map, const std::string& place) {
  require<InputError>(map.rows.size() == map.tokens.size(), "compare.json",
                      "expected '{}.rows' to have one row per token ({}); got {}", place,
                      map.tokens.size(), map.rows.size());
  for (size_t i = 0; i < map.rows.size(); ++i) {
    require<InputError>(map.rows[i].size() == i + 1, "compare.json",
                        "expected '{}.rows[{}]' to have {} weights (keys 0 to {}); got {}", place,
                        i, i + 1, i, map.rows[i].size());
  }
}

void check(const CompareResult& result) {
  std::set<std::string> names;
  for (size_t i = 0; i < result.variants.size(); ++i) {
    const CompareVariant& variant = result.variants[i];
    const std::string place = fmt::format("variants[{}]", i);
    require<InputError>(names.insert(variant.name).second, "compare.json",
                        "expected the names of variants to differ; '{}.name' repeats '{}'", place,
                        variant.name);
    std::set<int64_t> seeds;
    for (const CompareRun& run : variant.runs) {
      require<InputError>(seeds.insert(run.seed).second, "compare.json",
                          "expected one run per seed in '{}.runs'; seed {} occurs twice", place,
                          run.seed);
    }
    for (size_t k = 0; k < variant.attention_maps.size(); ++k) {
      check_map(variant.attention_maps[k], fmt::format("{}.attention_maps[{}]", place, k));
    }
  }
  require<InputError>(result.variants.empty() || names.count(result.reference) == 1, "compare.json",
                      "expected 'reference' to be the name of a variant; got '{}'",
                      result.reference);
}

}  // namespace

std::span<const std::string_view> enum_names(BudgetKind) { return kBudgetNames; }
std::span<const std::string_view> enum_names(Verdict) { return kVerdictNames; }

std::string_view verdict_text(Verdict verdict) {
  if (verdict == Verdict::one_seed) return "one seed: no verdict";
  return enum_names(verdict)[static_cast<size_t>(verdict)];
}

const CompareVariant* CompareResult::reference_variant() const {
  for (const CompareVariant& variant : variants) {
    if (variant.name == reference) return &variant;
  }
  return nullptr;
}

Json to_json(const CompareResult& result) {
  CompareResult copy = result;
  for (CompareVariant& variant : copy.variants) {
    for (AttentionMap& map : variant.attention_maps) {
      for (auto& row : map.rows) {
        for (double& weight : row) weight = std::round(weight * 1e5) / 1e5;
      }
    }
  }
  Json document{{"schema", kCompareSchemaVersion}};
  document.update(described_json(copy));
  document["verdict_rule"] = verdict_rule(result.equivalence_margin);
  document["scaling"] = scaling_json(scaling_studies(result));
  return document;
}

CompareResult compare_result_from_json(const Json& document) {
  require<InputError>(document.is_object(), "compare.json", "expected a JSON object; got {}",
                      document.type_name());
  const auto schema = document.find("schema");
  require<InputError>(schema != document.end() && schema->is_number_integer(), "compare.json",
                      "expected the integer key 'schema'; this is no file of `fovea compare`");
  const auto version = schema->get<int64_t>();
  require<InputError>(
      version == kCompareSchemaVersion, "compare.json",
      "expected schema version {}; got {}; read it with the version of fovea that wrote it",
      kCompareSchemaVersion, version);
  CompareResult result;
  read_result<InputError>(document, "compare.json", result);
  check(result);
  summarise(result);
  return result;
}

void save_compare_result(const CompareResult& result, const std::filesystem::path& path) {
  write_file(path, to_json(result).dump() + "\n");
}

CompareResult load_compare_result(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  require_shallow_json<InputError>(text, path.string());
  Json document;
  try {
    document = Json::parse(text);
  } catch (const Json::parse_error& error) {
    fail<InputError>("compare.json",
                     "expected JSON in '{}'; {}; run `fovea compare` again to rewrite it",
                     path.string(), error.what());
  }
  return compare_result_from_json(document);
}

}  // namespace fovea
