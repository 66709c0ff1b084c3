// Running a retrofit: its start, its phases, the adapter or model, the table.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/retrofit/retrofit.h"

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/base/paths.h"
#include "fovea/checkpoint/adapter.h"
#include "fovea/checkpoint/model_folder.h"
#include "fovea/checkpoint/run_folder.h"
#include "fovea/data/batch_stream.h"
#include "fovea/eval/copy_score.h"
#include "fovea/eval/run_task.h"
#include "fovea/eval/score_documents.h"
#include "fovea/report/retrofit_page.h"
#include "fovea/retrofit/differential_start.h"
#include "fovea/retrofit/systems_file.h"
#include "fovea/runtime/machine.h"
#include "fovea/text/result_json.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int64_t kCopyWindows = 8;
constexpr const char *kAdapter = "adapter", *kModel = "model", *kPhases = "phases",
                     *kSystems = "systems.yaml", *kStart = "start.json", *kStartFolder = "start";
// Rows of the text that the start of Differential is fitted on.
constexpr int64_t kStartRows = 8;

/// Rows of the validation part as texts, each about one window long.
std::vector<ScoreDocument> validation_texts(const Corpus& corpus, int64_t length, int64_t tokens) {
  std::vector<ScoreDocument> texts;
  const int64_t each = std::max(length, tokens / std::ssize(corpus.sources()));
  for (size_t i = 0; i < corpus.sources().size(); ++i) {
    const int64_t most = tokens > 0 ? each : corpus.sources()[i].validation_tokens;
    const ValidationSet set = validation_batches(corpus, i, length, 1, most);
    for (const Batch& batch : set.batches) {
      std::vector<int32_t> row;
      for (size_t t = 0; t < batch.tokens.size(); ++t)
        if (batch.targets[t] >= 0) row.push_back(batch.targets[t]);
      if (!row.empty()) texts.push_back({set.source, corpus.tokenizer().decode(row)});
    }
  }
  return texts;
}

std::string joined(std::span<const ScoreDocument> texts) {
  std::string all;
  for (const ScoreDocument& document : texts) all += document.text;
  return all;
}

std::vector<ScoreDocument> held_out_texts(const RetrofitOptions& options, const Corpus& corpus,
                                          int64_t length) {
  if (options.held_out.empty()) return validation_texts(corpus, length, options.evaluation_tokens);
  std::vector<ScoreDocument> texts = read_score_documents(options.held_out);
  if (options.evaluation_tokens <= 0) return texts;
  // The beginning of every document, so that the whole is about as long as was asked for.
  const auto each =
      std::max<int64_t>(length, options.evaluation_tokens / static_cast<int64_t>(texts.size()));
  for (ScoreDocument& document : texts) {
    std::vector<int32_t> tokens;
    corpus.tokenizer().append(document.text, tokens);
    if (std::ssize(tokens) <= each) continue;
    tokens.resize(static_cast<size_t>(each));
    document.text = corpus.tokenizer().decode(tokens);
  }
  return texts;
}

RetrofitScore score_model(const std::string& name, const Transformer& model,
                          const Tokenizer& tokenizer, std::span<const ScoreDocument> texts,
                          int64_t window, int64_t copy,
                          const std::function<void(std::string_view, int64_t, int64_t)>& tell) {
  const ScoreResult result = score_text(model, tokenizer, texts, {.window = window, .rows = 1},
                                        [&](int64_t done, int64_t total) {
                                          if (tell) tell(name, done, total);
                                        });
  RetrofitScore score{.name = name, .perplexity = result.total.token_perplexity()};
  if (copy > 0) score.copy = copy_score(model, tokenizer, joined(texts), copy, kCopyWindows).second;
  return score;
}

/// What the phases added to a model of `base`, with the gate of the first one: the last may have
/// trained beside hard groups.
Adapter adapter_of_phases(const std::vector<RetrofitPhase>& phases, const ModelConfig& base,
                          const std::string& base_name) {
  const LoadedModel loaded = load_model(resolve_model_folder(phases.back().recipe.run_folder));
  Adapter adapter = adapter_of(loaded.model, &base);
  if (adapter.attention)
    adapter.attention->spec.focus.gate = phases.front().recipe.model.attention.spec.focus.gate;
  adapter.base_name = base_name;
  return adapter;
}

/// The whole model that the phases made, with the gate of the first one and LoRA in the weights.
LoadedModel model_of_phases(const std::vector<RetrofitPhase>& phases) {
  const LoadedModel last = load_model(resolve_model_folder(phases.back().recipe.run_folder));
  ModelConfig config = last.config;
  config.attention.spec.focus.gate = phases.front().recipe.model.attention.spec.focus.gate;
  std::vector<std::string> drawn;
  Transformer gated = with_config(last.model, config, drawn);
  Transformer whole = config.lora.active() ? merge_adapter(gated) : std::move(gated);
  ModelConfig merged = whole.config();
  return {.config = std::move(merged),
          .model = std::move(whole),
          .tokenizer = last.tokenizer,
          .chat_template = last.chat_template};
}

/// `path`, or a folder that it lies in, is `place`.
bool lies_in(const fs::path& path, const fs::path& place) {
  for (fs::path at = fs::weakly_canonical(fs::absolute(path)); !at.empty(); at = at.parent_path()) {
    if (same_place(at, place)) return true;
    if (at == at.root_path()) break;
  }
  return false;
}

/// Refuses to write into the base, or over it, and to take the place of a folder that no retrofit
/// wrote.
void check_out(const fs::path& out, const fs::path& given, const fs::path& base) {
  require<InputError>(!lies_in(out, given) && !lies_in(out, base), out.string(),
                      "expected a folder outside the base; got one inside '{}': give another --out",
                      given.string());
  for (const char* const name : {kAdapter, kModel, kPhases, kStartFolder}) {
    require<InputError>(!lies_in(base, out / name), out.string(),
                        "the base lies in '{}' there, which this retrofit would replace; give "
                        "another --out",
                        name);
  }
  for (const char* const name : {kAdapter, kModel})
    require<InputError>(!path_exists(out / name) || path_exists(out / kPhases), out.string(),
                        "the folder holds '{}', which no retrofit wrote; give another --out", name);
}

void replace_model(const fs::path& path, const LoadedModel& loaded, const std::string& template_) {
  write_folder(path, [&](const fs::path& folder) {
    save_model(folder, loaded.model, *loaded.tokenizer, {.chat_template = template_});
    fs::remove_all(path);  // of an earlier, shorter budget
  });
}

/// OUT/start and start.json, unless an earlier call made them of the same base.
RetrofitStart make_start(const RetrofitOptions& options, const fs::path& folder,
                         const fs::path& base_folder, int64_t length,
                         const std::shared_ptr<const Corpus>& corpus,
                         const RetrofitCallbacks& callbacks) {
  const fs::path told = options.out / kStart;
  LoadedModel base = load_model(base_folder);
  const std::string of = model_fingerprint(base.model);
  if (!path_exists(told)) {
    BatchStream stream(
        corpus,
        {.sequence_length = length, .batch_rows = 1, .seed = static_cast<uint64_t>(options.seed)});
    std::vector<ModelInput> text;
    for (int64_t row = 0; row < kStartRows; ++row)
      text.push_back(model_input(stream.next(), base.model.device()));
    const int64_t layers = base.config.layers;
    const DifferentialStart start = differential_start(base.model, text, [&](int64_t done) {
      if (callbacks.table) callbacks.table("start, layer", done, layers);
    });
    fs::remove_all(folder);
    write_folder(folder, [&](const fs::path& to) {
      save_model(to, start.model, *base.tokenizer, {.chat_template = base.chat_template});
    });
    write_file(told,
               Json{{"base", of}, {"lambda", start.lambda}, {"error", start.error}}.dump(2) + "\n");
  }
  try {
    const Json json = Json::parse(read_file(told));
    require<InputError>(json.at("base") == of, told.string(),
                        "the start there was made of another model; give another --out");
    return {.model = folder,
            .lambda = json.at("lambda").get<std::vector<double>>(),
            .error = json.at("error").get<std::vector<double>>(),
            .score = {}};
  } catch (const Json::exception& error) {
    fail<InputError>(told.string(),
                     "expected what a retrofit wrote; got another file ({}); remove "
                     "it to make the start anew",
                     error.what());
  }
}

void replace_adapter(const fs::path& path, const ModelConfig& base, const Adapter& adapter) {
  write_folder(path, [&](const fs::path& folder) {
    write_adapter(folder, base, adapter);
    fs::remove_all(path);  // of an earlier, shorter budget
  });
}

/// Rank 0 makes files that the others read: it does the work first.
template <class Work>
auto first_rank_first(Communicator& ranks, const Work& work) {
  if (!ranks.is_first()) ranks.barrier();
  auto result = work();
  if (ranks.is_first()) ranks.barrier();
  return result;
}

void require_rows(const std::vector<RetrofitPhase>& phases, int64_t ranks) {
  for (const RetrofitPhase& phase : phases) {
    const int64_t rows = phase.recipe.train.batch_rows;
    require<ConfigError>(rows >= ranks, "retrofit",
                         "expected a row of each step for every rank; got {} rows and {} ranks: "
                         "add train.batch_rows={}, which makes steps of that many rows",
                         rows, ranks, ranks);
  }
}

/// The texts as tokens of the base, one corpus for all phases.
std::shared_ptr<const Corpus> read_corpus(const DataConfig& data, const fs::path& base,
                                          const TrainCallbacks& callbacks) {
  return prepare_corpus(data, load_model(base).tokenizer, [&](const CorpusProgress& progress) {
    require<Interrupted>(callbacks.stop == nullptr || !callbacks.stop->load(), "retrofit",
                         "stopped while the text was read; nothing had begun");
    if (callbacks.data) callbacks.data(progress);
  });
}

/// Ends the use of `model` for anything but inference. Full attention and top-1, top-2 behind
/// contexts of T, 2T and 4T tokens of text.
void measure_speeds(Transformer& model, const Tokenizer& tokenizer, const std::string& text,
                    int64_t length, const RetrofitCallbacks& callbacks, RetrofitResult& result) {
  constexpr int64_t kLongest = 4, kGroups = 2;
  const ComputeOptions before = model.compute();
  model.hold_matrices_in(before.dtype);  // as `fovea generate` holds them
  std::vector<int32_t> tokens;
  tokenizer.append(text, tokens);
  for (int64_t context = length; context <= kLongest * length; context *= 2) {
    if (context > std::ssize(tokens) || context > model.config().context) break;
    for (int64_t k = 0; k <= kGroups; ++k) {
      if (k > 0 && 2 * k > model.config().attention.spec.focus.groups) break;
      model.compute().focus = k == 0 ? FocusMode::off : FocusMode::hard;
      model.compute().focus_change = {.top_k = k};
      const std::string name = k == 0 ? "full attention" : fmt::format("top-{}", k);
      if (callbacks.table) callbacks.table(fmt::format("speed, {}, {}", context, name), k, kGroups);
      result.speeds.push_back(
          {name,
           measure_decode_speed(model, std::span(tokens).first(static_cast<size_t>(context)))});
    }
  }
  model.compute() = before;
}

RetrofitPage page_of(const RetrofitOptions& options, at::Device device,
                     const RetrofitResult& result) {
  RetrofitPage page{
      .base = fs::path(options.model).filename().string(),
      .kinds = fmt::format("{}", fmt::join(result.kinds, ", ")),
      .command = fmt::format("fovea retrofit {} --with {}{} --text {} --out {}", options.model,
                             fmt::join(options.with, ","), options.finetune ? " --finetune" : "",
                             fmt::join(options.texts, " --text "), options.out.string()),
      .code_version = code_version(),
      .machine = machine_text(device),
      .base_parameters = result.base_parameters,
      .added_parameters = result.added_parameters};
  for (const TrainResult& phase : result.phases) page.minutes += phase.seconds / 60.0;
  const auto add = [&](const char* family, std::string name, const RetentionScore& s) {
    page.rows.push_back({family, std::move(name), s.pairs, s.perplexity, s.copy});
  };
  if (result.retention) {
    add("full", "full attention", result.retention->full);
    for (const RetentionRow& row : result.retention->rows) {
      if (row.full) continue;
      const std::string k = fmt::format("top-{}", row.top_k);
      add("trained groups", k, row.trained);
      add("window and sinks", fmt::format("window {} and sinks", row.window), row.windowed);
      add("strided mask",
          fmt::format("window {}, stride {}, sinks", result.retention->local_window, row.stride),
          row.strided);
      add("random groups", k + ", random groups", row.random);
      add("hash groups", k + ", hash groups", row.hashed);
    }
  } else {
    std::vector<RetrofitScore> scores{result.before};
    if (result.start) scores.push_back(result.start->score);
    scores.push_back(result.after);
    for (const RetrofitScore& s : scores)
      page.rows.push_back({"full", s.name, 1.0, s.perplexity, s.copy});
  }
  for (const RetrofitSpeed& s : result.speeds)
    page.speeds.push_back({s.name, s.speed.prompt, s.speed.prompt_rate, s.speed.rate});
  return page;
}

void tell_size(std::span<const ScoreDocument> texts, const Tokenizer& tokenizer, int64_t window,
               const TrainCallbacks& callbacks) {
  if (!callbacks.message) return;
  int64_t tokens = 0;
  for (const ScoreDocument& document : texts) tokens += std::ssize(tokenizer.encode(document.text));
  callbacks.message(fmt::format(
      "table: each attention is scored on {} held-out tokens, in windows of {}", tokens, window));
}

/// The table, in the number format of the training: base, base with the adapter, and with Focus
/// what is kept of it.
void measure(const RetrofitOptions& options, const TrainConfig& train, LoadedModel& base,
             Transformer& model, const Corpus& corpus, const RetrofitCallbacks& callbacks,
             RetrofitResult& result) {
  const at::ScalarType dtype = choose_dtype(train.dtype, model.device());
  const int64_t window = train.sequence_length, copy = std::min(options.copy, window / 2);
  const std::vector<ScoreDocument> texts = held_out_texts(options, corpus, window);
  tell_size(texts, *base.tokenizer, window, callbacks.train);
  base.model.compute().dtype = model.compute().dtype = dtype;
  result.base_parameters = base.model.parameters().count();
  result.added_parameters = model.parameters().count() - result.base_parameters;
  const std::string with = fmt::format("with {}", fmt::join(result.kinds, ", "));
  const auto score = [&](const std::string& name, const Transformer& of) {
    return score_model(name, of, *base.tokenizer, texts, window, copy, callbacks.table);
  };
  if (result.start) {
    LoadedModel start = load_model(result.start->model, model.device());
    start.model.compute().dtype = dtype;
    result.start->score = score("start", start.model);
  }
  if (!model.has("focus")) {
    result.before = score("base", base.model);
    result.after = score(with, model);
    return;
  }
  result.retention = measure_retention(model, *base.tokenizer, texts,
                                       {.score = {.window = window, .rows = 1},
                                        .copy = copy,
                                        .copy_windows = kCopyWindows,
                                        .most_top_k = options.most_top_k},
                                       callbacks.table);
  const RetentionScore &full = result.retention->full, &soft = result.retention->soft;
  result.after = {.name = with, .perplexity = soft.perplexity, .copy = soft.copy};
  if (options.speed)
    measure_speeds(model, *base.tokenizer, joined(texts), window, callbacks, result);
  // Focus alone and off, over a frozen base, is the base.
  const bool is_base = result.kinds.size() == 1 && result.model.empty();
  result.before =
      is_base ? RetrofitScore{"base", full.perplexity, full.copy} : score("base", base.model);
}

// The part of TrainResult that a phase tells.
nlohmann::ordered_json phases_json(const std::vector<TrainResult>& phases) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const TrainResult& phase : phases)
    list.push_back({{"steps", phase.steps},
                    {"tokens", phase.tokens},
                    {"seconds", phase.seconds},
                    {"tokens_per_second", phase.tokens_per_second},
                    {"loss", phase.loss},
                    {"checkpoint", phase.checkpoint.string()}});
  return list;
}

}  // namespace

RetrofitResult run_retrofit(const RetrofitOptions& options, const RetrofitCallbacks& callbacks,
                            Communicator& ranks) {
  const fs::path base_folder = resolve_model_folder(options.model, callbacks.train.warning);
  const ModelConfig config = load_model_config(base_folder);
  const std::vector<RetrofitPhase> phases = plan_retrofit(options, config);
  require_rows(phases, ranks.size());
  check_out(options.out, options.model, base_folder);
  ranks.barrier();  // all have looked at OUT before rank 0 writes there
  RetrofitResult result;
  for (const RetrofitKind* kind : chosen_kinds(options.with, config))
    result.kinds.emplace_back(kind->name);
  const TrainConfig& train = phases.front().recipe.train;
  const auto corpus = first_rank_first(
      ranks, [&] { return read_corpus(phases.front().recipe.data, base_folder, callbacks.train); });
  if (const std::string from = retrofit_beginning(options, config); from != options.model)
    result.start = first_rank_first(ranks, [&] {
      return make_start(options, from, base_folder, train.sequence_length, corpus, callbacks);
    });
  for (const RetrofitPhase& phase : phases) {
    if (callbacks.phase) callbacks.phase(phase);
    result.phases.push_back(Trainer(phase.recipe, callbacks.train, corpus, ranks).run());
    ranks.barrier();  // its last checkpoint is there for the next phase
  }
  if (!ranks.is_first()) return result;
  const at::Device device = choose_device(train.device);
  LoadedModel base = load_model(base_folder, device);
  std::optional<Transformer> model;
  if (retrofit_makes_model(options, config)) {
    result.model = options.out / kModel;
    LoadedModel made = model_of_phases(phases);
    replace_model(result.model, made, base.chat_template);
    model.emplace(device.is_cpu() ? std::move(made.model) : load_model(result.model, device).model);
  } else {
    result.adapter = options.out / kAdapter;
    const Adapter adapter = adapter_of_phases(phases, config, options.model);
    replace_adapter(result.adapter, config, adapter);
    model.emplace(with_adapter(base.model, adapter));
    write_file(options.out / kSystems, retrofit_systems(result.adapter, model->config()));
  }
  measure(options, train, base, *model, *corpus, callbacks, result);
  write_file(options.out / "retrofit.json", result.to_json().dump(2) + "\n");
  write_file(options.out / "report.html", retrofit_html(page_of(options, device, result)));
  return result;
}

template <class V>
void describe(V& v, RetrofitScore& s) {
  v("name", s.name);
  v("perplexity", s.perplexity);
  v.optional("copy_perplexity", s.copy, s.copy > 0.0);
}

template <class V>
void describe(V& v, RetrofitStart& s) {
  v.derived("model", s.model);
  v("lambda", s.lambda);
  v("error", s.error);
  v("score", s.score);
}

template <class V>
void describe(V& v, RetrofitSpeed& s) {
  v("name", s.name);
  v("context", s.speed.prompt);
  v("prompt_tokens_per_second", s.speed.prompt_rate);
  v("tokens_per_second", s.speed.rate);
  v("path", s.speed.path);
}

template <class V>
void describe(V& v, RetrofitResult& r) {
  v("with", r.kinds);
  if (!r.adapter.empty()) v.derived("adapter", r.adapter);
  if (!r.model.empty()) v.derived("model", r.model);
  v("base_parameters", r.base_parameters);
  v("added_parameters", r.added_parameters);
  v.derived("phases", phases_json(r.phases));
  v("before", r.before);
  v.optional("start", r.start, r.start.has_value());
  v("after", r.after);
  v.optional("retention", r.retention, r.retention.has_value());
  v.optional("speeds", r.speeds, !r.speeds.empty());
}

nlohmann::ordered_json RetrofitResult::to_json() const { return described_json(*this); }

}  // namespace fovea
