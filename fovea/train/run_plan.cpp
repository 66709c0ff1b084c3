// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/train/run_plan.h"

#include <ATen/ops/randn.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "fovea/attention/visible_keys.h"
#include "fovea/nn/matmul.h"
#include "fovea/nn/memory_needs.h"
#include "fovea/nn/transformer.h"
#include "fovea/runtime/machine.h"
#include "fovea/text/result_json.h"
#include "fovea/train/plan_rules.h"
#include "fovea/train/stage_schedule.h"

namespace fovea {
namespace {

constexpr std::array<std::string_view, 3> kVerdicts{"usual", "unusual", "against"};

ParameterParts count_parts(const ParameterRegistry& registry) {
  ParameterParts parts;
  const auto has = [](const std::string& name, std::string_view part) {
    return name.find(part) != std::string::npos;
  };
  for (const Parameter& p : registry.all()) {
    if (p.state) continue;
    const int64_t n = p.value.numel();
    if (p.trainable) parts.trainable += n;
    if (p.origin == Parameter::Origin::added) {
      parts.added += n;
    } else if (has(p.name, "embed_")) {
      parts.embedding += n;
    } else if (has(p.name, "lm_head")) {
      parts.head += n;
    } else if (has(p.name, "norm")) {
      parts.norms += n;
    } else if (has(p.name, "mlp")) {
      parts.feed_forward += n;
    } else {
      parts.attention += n;
    }
  }
  return parts;
}

/// Mean number of keys that a query of a sequence of `length` tokens sees; rows are sampled where
/// there are many.
double mean_visible_keys(const AttentionSpec& spec, int64_t length) {
  const int64_t step = std::max<int64_t>(1, length / 256);
  double sum = 0.0;
  int64_t rows = 0;
  for (int64_t i = step / 2; i < length; i += step, ++rows) sum += visible_keys(spec, i, length);
  return sum / static_cast<double>(std::max<int64_t>(rows, 1));
}

int64_t receptive_field(const ModelConfig& c) {
  int64_t tokens = 1;
  for (int64_t i = 0; i < c.layers; ++i) {
    const int64_t reach = window_reach(c.layer_attention(i));
    if (reach < 0) return c.context;
    tokens = std::min(tokens + reach, c.context);
  }
  return tokens;
}

/// Operations of one pair of a query and a key: products with key and value (of Differential's two
/// maps each), convolutions and mixes of every head, the gate of Focus once for all.
double pair_operations(const AttentionSpec& s) {
  const KernelExtent &before = s.multi_token.before, &after = s.multi_token.after;
  const int64_t of_head =
      s.head_dim + s.value_width() + before.queries * before.keys + after.queries * after.keys +
      s.head_mix.width(s.head_mix.before, s.heads) + s.head_mix.width(s.head_mix.after, s.heads);
  return 2.0 *
         static_cast<double>(s.heads * of_head + (s.focus.reads_groups() ? s.focus.groups : 0));
}

/// What torch, its matrix libraries and the threads allocate once they work: measured, 45 to 55 MB.
constexpr int64_t kWorkingLibraries = 50'000'000;

/// Elements that a block keeps for its backward pass, per token.
double kept_per_token(const ModelConfig& c) {
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  const int64_t heads = (q + 2 * kv) * (c.qk_norm == QkNorm::none ? 1 : 2) + q;
  return static_cast<double>(4 * c.width + heads + 3 * c.ffn_width);
}

/// A number of bytes that sums of a few others cannot bring beyond 64 bits.
int64_t bytes_of(double value) { return static_cast<int64_t>(std::min(value, 1e18)); }

MemoryPlan plan_memory(const Recipe& recipe, const ModelConfig& c, const ParameterParts& parts) {
  MemoryPlan m;
  const at::Device device = choose_device(recipe.train.device);
  const bool half = choose_dtype(recipe.train.dtype, device) == at::kBFloat16;
  const auto element = static_cast<double>(half ? 2 : 4);
  double tokens = 0.0;  // of the largest micro-batch
  int64_t positions = c.context;
  for (const StageSchedule& stage : stage_schedules(recipe)) {
    tokens = std::max(tokens, static_cast<double>(stage.batch_rows * stage.sequence_length));
    positions = std::max(positions, stage.sequence_length);
  }
  const auto layers = static_cast<double>(c.layers);
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  // Kept with the activations: the compute dtype's copy of each matrix, or float32's stacked ones.
  const int64_t copies = half ? parts.attention + parts.feed_forward
                              : c.layers * c.width * (q + 2 * kv + 2 * c.ffn_width);
  m.program = resident_memory_bytes() + kWorkingLibraries;
  const double tables = position_table_bytes(c, positions);
  m.weights = 4 * parts.total() + static_cast<int64_t>(element) * copies + bytes_of(tables);
  m.gradients = 4 * parts.trainable;
  m.optimizer = 8 * parts.trainable;
  const double kept = kept_per_token(c) * element + 4.0 * static_cast<double>(c.heads + 2);
  const double block = tokens * kept;
  m.activations =
      bytes_of(recipe.train.gradient_checkpointing
                   ? block + tokens * layers * 2.0 * static_cast<double>(c.width) * element
                   : block * layers);
  const int64_t chunk = recipe.train.loss_chunk > 0 ? recipe.train.loss_chunk : 8192;
  const double logits =
      std::min(tokens, static_cast<double>(chunk)) * static_cast<double>(c.vocab_size) * element +
      4.0 * static_cast<double>(c.vocab_size * c.width);
  const double backward = tokens * element * static_cast<double>(3 * c.ffn_width + 3 * c.width + q);
  const double scored = static_cast<double>(recipe.train.evaluation_rows) *
                        static_cast<double>(recipe.train.sequence_length);
  m.transient = bytes_of(std::max({logits, backward, pass_bytes(c, scored, element)}));
  return m;
}

DecodePlan plan_decode(const ModelConfig& c, int64_t kv_heads, const ParameterParts& parts,
                       double keys) {
  DecodePlan d;
  d.name = kv_heads == c.heads ? "MHA"
           : kv_heads == 1     ? "MQA"
                               : fmt::format("GQA, {} KV heads", kv_heads);
  d.is_model = kv_heads == c.kv_heads;
  const int64_t shared = 2 * c.width * c.head_dim * c.layers;  // W_k and W_v of one KV head
  const int64_t matrices = parts.attention + parts.feed_forward + parts.added +
                           c.vocab_size * c.width + (kv_heads - c.kv_heads) * shared;
  // Keys and values of two bytes.
  d.cache_bytes = bytes_of(4.0 * static_cast<double>(kv_heads * c.head_dim * c.layers) *
                           static_cast<double>(c.context));
  const double products = 4.0 * static_cast<double>(c.heads * c.head_dim * c.layers) * keys;
  const double read =
      4.0 * static_cast<double>(kv_heads * c.head_dim * c.layers) * keys;  // bfloat16 keys, values
  d.operations = 2.0 * static_cast<double>(matrices) + products;
  d.bytes_read = 2.0 * static_cast<double>(matrices) + read;
  d.intensity_of_cache = read > 0 ? products / read : 0.0;
  return d;
}

/// MHA, the model's own or 8 KV heads, and MQA: the choices of the notes' section 4.1.
std::vector<int64_t> kv_choices(const ModelConfig& c) {
  std::vector<int64_t> choices{c.heads};
  if (c.kv_heads != c.heads && c.kv_heads != 1) choices.push_back(c.kv_heads);
  for (const int64_t n : {8, 4, 2}) {
    if (choices.size() == 1 && n < c.heads && c.heads % n == 0) choices.push_back(n);
  }
  if (c.heads > 1) choices.push_back(1);
  return choices;
}

int64_t run_tokens(const Recipe& recipe, int64_t step_tokens) {
  const TrainConfig& t = recipe.train;
  if (t.tokens > 0) return t.tokens;
  if (t.steps > 0) return t.steps * step_tokens;
  int64_t total = 0;
  for (const StageConfig& stage : t.stages) {
    const int64_t rows = stage.batch_rows > 0 ? stage.batch_rows : t.batch_rows;
    const int64_t length = stage.sequence_length > 0 ? stage.sequence_length
                           : t.sequence_length > 0   ? t.sequence_length
                                                     : recipe.model.context;
    total += stage.steps * rows * length * t.accumulation;
  }
  return total;
}

}  // namespace

std::span<const std::string_view> enum_names(RuleVerdict) { return kVerdicts; }

RunPlan plan_run(const Recipe& unresolved, int64_t tokenizer_vocab) {
  const Recipe recipe = unresolved.resolved();
  RunPlan plan;
  plan.model = recipe.model.resolved(recipe.model.vocab_size > 0 ? recipe.model.vocab_size
                                                                 : tokenizer_vocab);
  const ModelConfig& c = plan.model;
  Transformer shape(c, 0, at::kMeta);
  for (const StageSchedule& stage : stage_schedules(recipe)) {  // memory is that of the largest
    train_only_stage(shape, stage);
    const ParameterParts parts = count_parts(shape.parameters());
    if (parts.trainable >= plan.parameters.trainable) plan.parameters = parts;
  }
  const int64_t length =
      recipe.train.sequence_length > 0 ? recipe.train.sequence_length : c.context;
  plan.step_tokens = recipe.train.batch_rows * recipe.train.accumulation * length;
  plan.tokens = run_tokens(recipe, plan.step_tokens);

  double keys = 0.0, products = 0.0, decode_keys = 0.0;
  for (int64_t i = 0; i < c.layers; ++i) {
    const AttentionSpec spec = c.layer_attention(i);
    const double mean = mean_visible_keys(spec, length);
    keys += mean;
    products += mean * pair_operations(spec);
    decode_keys += visible_keys(spec, c.context - 1, c.context);
  }
  plan.visible_keys = keys / static_cast<double>(c.layers);
  plan.receptive_field = receptive_field(c);
  plan.attention_per_token = products;
  const int64_t multiplied = plan.parameters.attention + plan.parameters.feed_forward +
                             plan.parameters.added + c.vocab_size * c.width;
  plan.forward_per_token = 2.0 * static_cast<double>(multiplied) + plan.attention_per_token;
  // Backward: gradients of the inputs, and of those weights that learn.
  const double matrices = plan.forward_per_token - plan.attention_per_token;
  const double learning = static_cast<double>(plan.parameters.trainable) /
                          static_cast<double>(std::max<int64_t>(plan.parameters.total(), 1));
  plan.training_per_token =
      plan.forward_per_token * (recipe.train.gradient_checkpointing ? 2.0 : 1.0) +
      matrices * (1.0 + learning) + 2.0 * plan.attention_per_token;
  plan.chinchilla_tokens = 20.0 * static_cast<double>(plan.parameters.total());
  plan.memory = plan_memory(recipe, c, plan.parameters);
  for (const int64_t n : kv_choices(c)) {
    plan.decode.push_back(
        plan_decode(c, n, plan.parameters, decode_keys / static_cast<double>(c.layers)));
  }
  plan.rules = check_rules(recipe, plan);
  return plan;
}

double measure_speed(const RunPlan& plan, const Recipe& recipe) {
  const at::ScalarType dtype = choose_dtype(recipe.train.dtype, choose_device(recipe.train.device));
  const ModelConfig& c = plan.model;
  const int64_t rows = std::min<int64_t>(plan.step_tokens, 2048);
  const int64_t in = std::min<int64_t>(c.width, 4096), out = std::min<int64_t>(c.ffn_width, 8192);
  const at::Tensor x = at::randn({rows, in}).to(dtype), w = at::randn({out, in}).to(dtype);
  const double operations = 2.0 * static_cast<double>(rows * in * out);
  double best = 0.0;
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [](auto since) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
  };
  while (best == 0.0 || seconds(begin) < 0.3) {
    const auto start = std::chrono::steady_clock::now();
    linear_product(x, w);
    best = std::max(best, operations / seconds(start));
  }
  return best;
}

template <class V>
void describe(V& v, ParameterParts& p) {
  v.derived("total", p.total());
  v("trainable", p.trainable);
  v("embedding", p.embedding);
  v("attention", p.attention);
  v("feed_forward", p.feed_forward);
  v("norms", p.norms);
  v("head", p.head);
  v("added", p.added);
}

template <class V>
void describe(V& v, MemoryPlan& m) {
  v.derived("total", m.total());
  v("program", m.program);
  v("weights", m.weights);
  v("gradients", m.gradients);
  v("optimizer", m.optimizer);
  v("activations", m.activations);
  v("transient", m.transient);
}

template <class V>
void describe(V& v, DecodePlan& d) {
  v("name", d.name);
  v("is_model", d.is_model);
  v("cache_bytes", d.cache_bytes);
  v("operations", d.operations);
  v("bytes_read", d.bytes_read);
  v("intensity_of_cache", d.intensity_of_cache);
}

template <class V>
void describe(V& v, RuleCheck& r) {
  v("rule", r.rule);
  v("value", r.value);
  v("verdict", r.verdict);
  v("advice", r.advice);
  v("source", r.source);
}

template <class V>
void describe(V& v, RunPlan& p) {
  v("parameters", p.parameters);
  v.group("operations", [&](auto& of) {
    of("forward_per_token", p.forward_per_token);
    of("attention_per_token", p.attention_per_token);
    of("visible_keys", p.visible_keys);
    of("receptive_field", p.receptive_field);
    of("training_per_token", p.training_per_token);
    of.derived("training", p.training_operations());
  });
  v.group("tokens", [&](auto& of) {
    of("run", p.tokens);
    of("step", p.step_tokens);
    of("chinchilla", p.chinchilla_tokens);
  });
  v("memory_bytes", p.memory);
  v.optional("decode", p.decode, !p.decode.empty());
  v.optional("rules", p.rules, !p.rules.empty());
}

nlohmann::ordered_json RunPlan::to_json() const { return described_json(*this); }

}  // namespace fovea
