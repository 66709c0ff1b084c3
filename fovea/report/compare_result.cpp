// compare.json: one list of keys per struct serves writing and reading.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/compare_result.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <type_traits>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/report/format.h"
#include "fovea/report/scaling.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;
using Pairs = std::vector<std::pair<std::string, std::string>>;

constexpr std::string_view kBudgetNames[] = {"tokens", "time", "parameters"};
constexpr std::string_view kVerdictNames[] = {"reference",         "better",   "worse",
                                              "inside the spread", "one seed", "incomplete"};

// A visitor has operator()(key, value) for keys that must be there and optional(key, value) for
// those that may be absent, derived(key, value) for those that are written and not read.

template <class V>
void keys(V& v, CurvePoint& p) {
  v("step", p.step);
  v("tokens", p.tokens);
  v("seconds", p.seconds);
  v("train_loss", p.train_loss);
}

template <class V>
void keys(V& v, ValidationPoint& p) {
  v("step", p.step);
  v("tokens", p.tokens);
  v("bits_per_byte", p.bits_per_byte);
}

template <class V>
void keys(V& v, TemperaturePoint& p) {
  v("step", p.step);
  v("per_layer", p.per_layer);
  v("clipped_share", p.clipped_share);
}

template <class V>
void keys(V& v, TaskPoint& p) {
  v("task", p.task);
  v("metric", p.metric);
  v("step", p.step);
  v("value", p.value);
  v("error", p.error);
  v("items", p.items);
}

template <class V>
void keys(V& v, CompareRun& r) {
  v("seed", r.seed);
  v("validation_bits_per_byte", r.validation_bits_per_byte);
  v("validation_perplexity", r.validation_perplexity);
  v("validation_loss", r.validation_loss);
  v("tokens", r.tokens);
  v("seconds", r.seconds);
  v("tokens_per_second", r.tokens_per_second);
  v("peak_memory_bytes", r.peak_memory_bytes);
  v.optional("attention_path", r.attention_path);
  v.optional("failure", r.failure);
  v.optional("curve", r.curve);
  v.optional("validation_curve", r.validation_curve);
  v.optional("temperature", r.temperature);
  v.optional("tasks", r.tasks);
}

template <class V>
void keys(V& v, Spread& s) {
  v("mean", s.mean);
  v("min", s.min);
  v("max", s.max);
  v("standard_deviation", s.standard_deviation);
}

template <class V>
void keys(V& v, Interval& i) {
  v("low", i.low);
  v("high", i.high);
}

template <class V>
void keys(V& v, VariantSummary& s) {
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
  v("pairs_needed", s.pairs_needed);
}

template <class V>
void keys(V& v, TextSample& s) {
  v("prompt", s.prompt);
  v("text", s.text);
}

template <class V>
void keys(V& v, AttentionMap& m) {
  v("layer", m.layer);
  v("head", m.head);
  v("tokens", m.tokens);
  v("rows", m.rows);
}

template <class V>
void keys(V& v, CompareVariant& c) {
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
void keys(V& v, CompareBaseline& b) {
  v("name", b.name);
  v("bits_per_byte", b.bits_per_byte);
  v.optional("text_bytes", b.text_bytes);
}

template <class V>
void keys(V& v, MachineInfo& m) {
  v("cpu", m.cpu);
  v("cores", m.cores);
  v("isa", m.isa);
  v.optional("device", m.device);
  v("memory_bytes", m.memory_bytes);
}

template <class V>
void keys(V& v, DataInfo& d) {
  v("sources", d.sources);
  v("bytes", d.bytes);
  v("documents", d.documents);
  v("validation_bytes", d.validation_bytes);
  v("fingerprint", d.fingerprint);
}

template <class V>
void keys(V& v, CompareResult& r) {
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
  v.optional("baselines", r.baselines);
  v("variants", r.variants);
}

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};

struct Writer {
  Json& out;

  template <class T>
  void operator()(const char* key, T& value) {
    out[key] = encode(value);
  }
  template <class T>
  void optional(const char* key, T& value) {
    out[key] = encode(value);
  }

  template <class T>
  void derived(const char* key, T& value) {
    out[key] = encode(value);
  }

  template <class T>
  static Json encode(T& value) {
    if constexpr (std::is_same_v<T, std::optional<int64_t>>) {
      return value ? Json(*value) : Json(nullptr);
    } else if constexpr (std::is_same_v<T, double>) {
      return std::isfinite(value) ? Json(value) : Json(nullptr);
    } else if constexpr (std::is_same_v<T, int64_t>) {
      return value;
    } else if constexpr (std::is_same_v<T, std::string>) {
      return repair_utf8(value);
    } else if constexpr (std::is_enum_v<T>) {
      return std::string(enum_names(value)[static_cast<size_t>(value)]);
    } else if constexpr (std::is_same_v<T, Pairs>) {
      Json object = Json::object();
      for (const auto& [key, text] : value) object[repair_utf8(key)] = repair_utf8(text);
      return object;
    } else if constexpr (IsVector<T>::value) {
      Json list = Json::array();
      for (auto& item : value) list.push_back(encode(item));
      return list;
    } else {
      Json object = Json::object();
      Writer writer{object};
      keys(writer, value);
      return object;
    }
  }
};

struct Reader {
  const Json& in;
  const std::string& place;  // "" at the top

  template <class T>
  void operator()(const char* key, T& value) {
    const auto found = in.find(key);
    require<InputError>(found != in.end(), "compare.json", "expected the key '{}'; it is missing",
                        inside(key));
    decode(*found, inside(key), value);
  }
  template <class T>
  void optional(const char* key, T& value) {
    const auto found = in.find(key);
    if (found != in.end()) decode(*found, inside(key), value);
  }
  template <class T>
  void derived(const char*, T&) {}
  std::string inside(const char* key) const { return place.empty() ? key : place + "." + key; }

  static void expect(bool condition, const std::string& place, std::string_view kind,
                     const Json& node) {
    require<InputError>(condition, "compare.json", "expected '{}' to be {}; got {}", place, kind,
                        node.type_name());
  }

  template <class T>
  static void decode(const Json& node, const std::string& place, T& value) {
    if constexpr (std::is_same_v<T, double>) {
      expect(node.is_number() || node.is_null(), place, "a number or null", node);
      value = node.is_null() ? kNotANumber : node.template get<double>();
    } else if constexpr (std::is_same_v<T, int64_t>) {
      expect(node.is_number_integer(), place, "an integer", node);
      value = node.template get<int64_t>();
    } else if constexpr (std::is_same_v<T, std::string>) {
      expect(node.is_string(), place, "a string", node);
      value = node.template get<std::string>();
    } else if constexpr (std::is_enum_v<T>) {
      decode_enum(node, place, value);
    } else if constexpr (std::is_same_v<T, Pairs>) {
      expect(node.is_object(), place, "an object of strings", node);
      value.clear();
      for (const auto& [key, text] : node.items()) {
        expect(text.is_string(), place + "." + key, "a string", text);
        value.emplace_back(key, text.template get<std::string>());
      }
    } else if constexpr (IsVector<T>::value) {
      expect(node.is_array(), place, "a list", node);
      value.assign(node.size(), {});
      for (size_t i = 0; i < node.size(); ++i) {
        decode(node[i], fmt::format("{}[{}]", place, i), value[i]);
      }
    } else {
      expect(node.is_object(), place, "an object", node);
      Reader reader{node, place};
      keys(reader, value);
    }
  }

  template <class E>
  static void decode_enum(const Json& node, const std::string& place, E& value) {
    expect(node.is_string(), place, "a string", node);
    const auto name = node.template get<std::string>();
    const auto names = enum_names(value);
    for (size_t i = 0; i < names.size(); ++i) {
      if (names[i] == name) {
        value = static_cast<E>(i);
        return;
      }
    }
    fail<InputError>("compare.json", "expected '{}' to be one of: {}; got '{}'", place,
                     fmt::join(names, ", "), name);
  }
};

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
  Json document = Json::object();
  document["schema"] = kCompareSchemaVersion;
  Writer writer{document};
  keys(writer, copy);
  document["verdict_rule"] = verdict_rule();
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
  const std::string top;
  Reader reader{document, top};
  keys(reader, result);
  check(result);
  summarise(result);
  return result;
}

void save_compare_result(const CompareResult& result, const std::filesystem::path& path) {
  write_file(path, to_json(result).dump() + "\n");
}

CompareResult load_compare_result(const std::filesystem::path& path) {
  const std::string text = read_file(path);
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
