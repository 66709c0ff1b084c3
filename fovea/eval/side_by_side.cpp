// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/side_by_side.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "fovea/attention/key_rule.h"
#include "fovea/attention/mechanism.h"
#include "fovea/attention/stages.h"
#include "fovea/attention/visible_keys.h"
#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/base/printable.h"
#include "fovea/config/reader.h"
#include "fovea/eval/cache_reads.h"
#include "fovea/eval/copy_score.h"
#include "fovea/eval/finished_scores.h"
#include "fovea/eval/run_task.h"
#include "fovea/eval/task_list.h"
#include "fovea/runtime/machine.h"
#include "fovea/text/result_json.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;
using Progress = std::function<void(std::string_view, int64_t, int64_t)>;

constexpr const char* kWhere = "side by side";
constexpr const char* kNeedleTask = "niah_single_2";
constexpr int64_t kCopyWindows = 8;

/// Reason why a model cannot write token by token, or empty.
std::string why_no_writing(const Transformer& model) {
  try {
    const at::NoGradGuard no_gradient;
    DecodeState state = model.make_decode_state(1, 1);
    (void)model.decode(at::zeros({1, 1}, at::TensorOptions(model.device()).dtype(at::kLong)),
                       state);
    return "";
  } catch (const UnsupportedError& error) {
    return error.what();
  }
}

double share_of_pairs(const AttentionSpec& spec, int64_t tokens) {
  double seen = 0;
  for (int64_t i = 0; i < tokens; ++i) {
    const double row = visible_keys(spec, i, i + 1);
    const std::optional<FixedChoice> choice = fixed_choice(spec, row);
    seen += choice ? choice->keys : row;
  }
  return seen / (0.5 * static_cast<double>(tokens) * static_cast<double>(tokens + 1));
}

/// Neither places nor a fixed number decide how many keys a row sees, or no pair is computed.
bool chooses_by_content(const AttentionSpec& spec) {
  const KeyRule rule = key_rule(spec);
  return rule == KeyRule::groups || rule == KeyRule::lists || rule == KeyRule::sums ||
         (rule == KeyRule::selected && !fixed_choice(spec, 0.0));
}

/// The key that `pairs_of` sets, and its largest value.
std::string key_for_pairs(const AttentionSystem& system) {
  const bool strided = std::ranges::any_of(system.attention, [](const std::string& key) {
    return key.starts_with("mask.sparsity") && key.ends_with("strided");
  });
  return strided ? "mask.stride" : "mask.window";
}

/// The value of `key` for which the masks keep the share of pairs that is nearest to `pairs`.
int64_t value_for_pairs(const ModelConfig& base, const AttentionSystem& system,
                        const std::string& key, double pairs, int64_t tokens) {
  const bool wider = key == "mask.window";  // more pairs with a larger value
  const auto share = [&](int64_t value) {
    std::vector<std::string> keys = system.attention;
    keys.push_back(fmt::format("{}={}", key, value));
    return masked_pairs(with_attention_keys(base, keys), tokens).value_or(1.0);
  };
  int64_t low = 1, high = tokens;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if ((share(middle) >= pairs) == wider) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  const bool before = low > 1 && std::abs(share(low - 1) - pairs) < std::abs(share(low) - pairs);
  return before ? low - 1 : low;
}

/// The documents that hold a window of `length`, no more tokens of them than asked for.
std::vector<ScoreDocument> texts_of(std::span<const ScoreDocument> documents,
                                    const Tokenizer& tokenizer, int64_t length, int64_t most) {
  std::vector<ScoreDocument> texts;
  int64_t room = most > 0 ? std::max(most, length) : std::numeric_limits<int64_t>::max();
  for (const ScoreDocument& document : documents) {
    const std::vector<int32_t> tokens = tokenizer.encode(document.text);
    const int64_t taken = std::min(room, std::ssize(tokens));
    if (taken < length) continue;
    const bool whole = taken == std::ssize(tokens);
    texts.push_back({document.source, whole ? document.text
                                            : tokenizer.decode(std::span(tokens).first(
                                                  static_cast<size_t>(taken)))});
    room -= taken;
  }
  require<InputError>(!texts.empty(), kWhere,
                      "a document of the text must hold {} tokens for a window of that length; "
                      "give a longer text or a smaller --lengths",
                      length);
  return texts;
}

PairedTest difference_to(const std::vector<WindowScore>& first,
                         const std::vector<WindowScore>& other) {
  std::vector<double> differences;
  for (size_t n = 0; n < std::min(first.size(), other.size()); ++n) {
    const auto mean = [](const WindowScore& w) { return w.nll / static_cast<double>(w.tokens); };
    differences.push_back(mean(other[n]) - mean(first[n]));
  }
  return paired_t_test(differences);
}

/// Measures system after system; texts and the scores of the first are kept by length.
class SideBySide {
 public:
  SideBySide(std::span<const ScoreDocument> documents, const SideBySideOptions& options,
             const Progress& progress, const std::atomic<bool>* interrupt)
      : documents_(documents),
        options_(options),
        progress_(progress),
        interrupt_(interrupt),
        finished_(options.finished) {}

  void measure(const AttentionSystem& system, SideBySideResult& result) {
    SideBySideRow row{.system = system};
    std::vector<int64_t> lengths = options_.lengths;
    if (lengths.empty()) lengths.push_back(load_model_config(options_.model).context);
    for (const int64_t length : lengths) {
      const AttentionSystem exact = with_pairs(system, length, result);
      ModelChange change{exact.adapters, exact.attention};
      LoadedModel loaded = load_changed(options_.model, change, options_.device);
      loaded.model.compute().dtype = options_.dtype;
      loaded.model.compute().focus = system.focus;
      loaded.model.compute().focus_change.top_k = system.top_k;
      row.drawn = std::ssize(loaded.drawn);
      if (options_.needles > 0 || options_.speed) row.cannot_write = why_no_writing(loaded.model);
      writes_ = row.cannot_write.empty();
      if (row.pipeline.empty())
        row.pipeline = describe_pipeline(loaded.model.config().layer_attention(0));
      row.scores.push_back(finished_score(exact, loaded, length));
    }
    result.rows.push_back(std::move(row));
  }
  void forget() { finished_.remove(); }

 private:
  /// As an interrupted call left it, else measured and kept.
  SideBySideScore finished_score(const AttentionSystem& system, LoadedModel& loaded,
                                 int64_t length) {
    auto& texts = texts_[length];
    if (texts.empty()) texts = texts_of(documents_, *loaded.tokenizer, length, options_.tokens);
    const Json asked = asked_of(system, loaded, length);
    const FinishedScore* earlier = finished_.find(asked);
    FinishedScore now = earlier != nullptr ? *earlier : score(system, loaded, length);
    if (earlier == nullptr) finished_.keep(asked, now);
    const auto [first, is_first] = first_.try_emplace(length, now.windows);
    if (!is_first) now.score.difference = difference_to(first->second, now.windows);
    return now.score;
  }

  Json asked_of(const AttentionSystem& system, const LoadedModel& loaded, int64_t length) {
    uint64_t text = 0;
    for (const ScoreDocument& document : texts_.at(length)) text = fingerprint(document.text, text);
    return {{"system", fields_to_json(system)},
            {"length", length},
            {"model", model_fingerprint(loaded.model)},
            {"text", text},
            {"dtype", at::toString(options_.dtype)},
            {"copy", options_.copy},
            {"needles", options_.needles},
            {"speed", options_.speed},
            {"program", code_version()}};
  }

  /// The system with the window that `pairs_of` asks for.
  AttentionSystem with_pairs(const AttentionSystem& system, int64_t length,
                             const SideBySideResult& result) {
    chosen_ = 0;
    if (system.pairs_of.empty()) return system;
    const auto row = std::ranges::find(result.rows, system.pairs_of,
                                       [](const SideBySideRow& r) { return r.system.name; });
    const auto score = std::ranges::find(row->scores, length, &SideBySideScore::length);
    require<ConfigError>(score->pairs.has_value(), kWhere,
                         "'{}' asks for the pairs of '{}', which are not known", system.name,
                         system.pairs_of);
    const std::string key = key_for_pairs(system);
    chosen_ =
        value_for_pairs(load_model_config(options_.model), system, key, *score->pairs, length);
    AttentionSystem exact = system;
    exact.attention.push_back(fmt::format("{}={}", key, chosen_));
    return exact;
  }

  void tell(const std::string& system, const char* what, int64_t length, int64_t done,
            int64_t total) {
    const std::string kept = options_.finished.empty()
                                 ? "nothing was written"
                                 : "what is measured stays: the same command goes on";
    require<Interrupted>(interrupt_ == nullptr || !interrupt_->load(), kWhere, "stopped; {}", kept);
    if (progress_) progress_(fmt::format("{}, {} tokens, {}", system, length, what), done, total);
  }

  FinishedScore score(const AttentionSystem& system, LoadedModel& loaded, int64_t length) {
    const auto& texts = texts_.at(length);
    const auto told = [&](const char* what) {
      return [this, &system, what, length](int64_t done, int64_t total) {
        tell(system.name, what, length, done, total);
      };
    };
    ScoreResult text = score_text(loaded.model, *loaded.tokenizer, texts,
                                  {.window = length, .rows = 1}, told("text"));
    SideBySideScore score{.length = length,
                          .pairs = share_of_pairs_read(loaded.model, text, length),
                          .bytes_read = bytes_read(loaded.model, text, length),
                          .window = chosen_,
                          .perplexity = text.total.token_perplexity()};
    if (options_.copy > 0) {
      tell(system.name, "copy", length, 0, 1);
      std::string all;
      for (const ScoreDocument& document : texts) all += document.text;
      score.copy = copy_score(loaded.model, *loaded.tokenizer, all,
                              std::min(options_.copy, length / 2), kCopyWindows)
                       .second;
    }
    if (options_.needles > 0 && writes_) score.needle = needle(loaded, length, told("needles"));
    if (options_.speed && writes_) {
      tell(system.name, "speed", length, 0, 1);
      score.speed = speed(loaded, texts, length);
    }
    return {score, std::move(text.windows)};
  }

  std::optional<double> bytes_read(const Transformer& model, const ScoreResult& text,
                                   int64_t length) const {
    const bool prunes = model.has("focus") && prunes_pairs(model.compute().focus);
    return cache_bytes_read(
        model.config(), length, options_.dtype,
        {.distant_kept = prunes ? std::optional(text.distant_kept) : std::nullopt,
         .chosen_keys = text.last_keys_read});
  }

  double needle(const LoadedModel& loaded, int64_t length,
                const std::function<void(int64_t, int64_t)>& told) const {
    const TaskInput input{
        .tokenizer = *loaded.tokenizer, .limit = options_.needles, .lengths = {length}};
    const TaskScore result =
        run_task(loaded.model, *loaded.tokenizer, find_task(kNeedleTask), input,
                 {.context = length, .progress = told, .interrupt = interrupt_});
    return result.metrics.front().value;
  }

  /// Ends the use of the model for anything but inference.
  DecodeSpeed speed(LoadedModel& loaded, const std::vector<ScoreDocument>& texts,
                    int64_t length) const {
    std::vector<int32_t> tokens;
    for (const ScoreDocument& document : texts) {
      loaded.tokenizer->append(document.text, tokens);
      if (std::ssize(tokens) >= length) break;
    }
    tokens.resize(static_cast<size_t>(std::min<int64_t>(length, std::ssize(tokens))));
    loaded.model.hold_matrices_in(options_.dtype);
    return measure_decode_speed(loaded.model, tokens);
  }

  std::span<const ScoreDocument> documents_;
  const SideBySideOptions& options_;
  const Progress& progress_;
  const std::atomic<bool>* interrupt_;
  std::map<int64_t, std::vector<ScoreDocument>> texts_;  // by length
  std::map<int64_t, std::vector<WindowScore>> first_;    // of the first system, by length
  FinishedScores finished_;
  int64_t chosen_ = 0;  // window or stride of the system
  bool writes_ = true;  // the system, token by token
};

/// Holm over the systems of each length.
void correct(SideBySideResult& result) {
  for (size_t n = 0; n < result.rows.front().scores.size(); ++n) {
    std::vector<double> p;
    std::vector<SideBySideScore*> scores;
    for (size_t row = 1; row < result.rows.size(); ++row) {
      SideBySideScore& score = result.rows[row].scores[n];
      if (std::isnan(score.difference.p)) continue;
      p.push_back(score.difference.p);
      scores.push_back(&score);
    }
    const std::vector<double> corrected = holm_corrected(p);
    for (size_t i = 0; i < scores.size(); ++i) scores[i]->p = corrected[i];
  }
}

}  // namespace

void AttentionSystem::describe(FieldVisitor& v) {
  v.text({"name", "of its row"}, name);
  v.texts({"adapters", "folders of PEFT or of fovea retrofit"}, adapters);
  v.texts({"attention", "keys of model.attention: mask.window=512"}, attention);
  v.choice({"focus", "how layers with Focus attend"}, focus);
  v.integer(
      {"top_k", "groups of a token under focus hard, random or hash; 0 = the model's", {0, 64}},
      top_k);
  v.text({"pairs_of",
          "an earlier system: mask.window, or mask.stride where mask.sparsity is "
          "strided, is chosen for as many pairs"},
         pairs_of);
}

void AttentionSystems::describe(FieldVisitor& v) {
  v.nested_list({"systems", "ways to attend, the one to compare with first"}, systems);
}

void AttentionSystems::check() const {
  require<ConfigError>(!systems.empty(), kWhere, "'systems' must list at least one system");
  for (size_t n = 0; n < systems.size(); ++n) {
    const AttentionSystem& system = systems[n];
    require<ConfigError>(!system.name.empty(), kWhere, "system {} needs a 'name'", n);
    require<ConfigError>(printable_line(system.name) == system.name, kWhere,
                         "expected names in UTF-8 without control characters; got '{}'",
                         printable_line(system.name));
    const auto named = [&](const std::string& name) {
      return std::any_of(systems.begin(), systems.begin() + static_cast<ptrdiff_t>(n),
                         [&](const AttentionSystem& s) { return s.name == name; });
    };
    require<ConfigError>(!named(system.name), kWhere, "two systems have the name '{}'",
                         system.name);
    require<ConfigError>(system.pairs_of.empty() || named(system.pairs_of), kWhere,
                         "'pairs_of' of '{}' must name a system before it; got '{}'", system.name,
                         system.pairs_of);
  }
}

AttentionSystems read_attention_systems(const std::filesystem::path& file) {
  AttentionSystems systems;
  read_fields(load_yaml(file), systems);
  systems.check();
  return systems;
}

std::optional<double> share_of_pairs_read(const Transformer& model, const ScoreResult& text,
                                          int64_t length) {
  const FocusMode focus = model.compute().focus;
  if (model.has("focus") && prunes_pairs(focus)) return text.pairs_kept;
  if (model.has("focus") && focus == FocusMode::off) return 1.0;
  return masked_pairs(model.config(), length, text.pairs_read);
}

std::optional<double> masked_pairs(const ModelConfig& config, int64_t tokens,
                                   std::optional<double> chosen) {
  std::vector<std::pair<AttentionSpec, double>> known;
  double sum = 0.0;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    AttentionSpec spec = config.layer_attention(layer);
    if (chooses_by_content(spec)) {
      if (!chosen || key_rule(spec) == KeyRule::sums) return std::nullopt;
      sum += *chosen;
      continue;
    }
    spec.depth = 0;
    auto found = std::ranges::find(known, spec, [](const auto& k) { return k.first; });
    if (found == known.end())
      found = known.insert(known.end(), {spec, share_of_pairs(spec, tokens)});
    sum += found->second;
  }
  return sum / static_cast<double>(config.layers);
}

SideBySideResult compare_attentions(const AttentionSystems& systems,
                                    std::span<const ScoreDocument> documents,
                                    const SideBySideOptions& options, const Progress& progress,
                                    const std::atomic<bool>* interrupt) {
  systems.check();
  SideBySideResult result;
  SideBySide measure(documents, options, progress, interrupt);
  for (const AttentionSystem& system : systems.systems) measure.measure(system, result);
  correct(result);
  measure.forget();
  return result;
}

template <class V>
void describe(V& v, SideBySideScore& s) {
  v("length", s.length);
  v("pairs", s.pairs);
  v("cache_bytes_read", s.bytes_read);
  v("perplexity", s.perplexity);
  v.optional("chosen", s.window, s.window > 0);
  if (s.difference.pairs > 0)  // not of the first system
    v.group("difference", [&](auto& of) {
      of("nats", s.difference.mean);
      of("error", s.difference.error);
      of("windows", s.difference.pairs);
      of("p", s.p);
    });
  v.optional("copy_perplexity", s.copy, s.copy > 0.0);
  v.optional("needles_found", s.needle, s.needle >= 0.0);
  if (s.speed)
    v.group("speed", [&](auto& of) {
      of("prompt_tokens_per_second", s.speed->prompt_rate);
      of("tokens_per_second", s.speed->rate);
      of("path", s.speed->path);
    });
}

template <class V>
void describe(V& v, SideBySideRow& r) {
  v("name", r.system.name);
  v("attention", r.pipeline);
  v("drawn_tensors", r.drawn);
  v.optional("cannot_write", r.cannot_write, !r.cannot_write.empty());
  v("scores", r.scores);
}

template <class V>
void describe(V& v, SideBySideResult& r) {
  v("systems", r.rows);
}

nlohmann::ordered_json SideBySideResult::to_json() const { return described_json(*this); }

}  // namespace fovea
