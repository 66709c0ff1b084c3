// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/compare/collect.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "fovea/report/metrics_log.h"

namespace fovea {
namespace {

double number(const nlohmann::ordered_json& record, const char* key) {
  const auto found = record.find(key);
  return found != record.end() && found->is_number() ? found->get<double>() : kNotANumber;
}

}  // namespace

CompareRun collect_run(int64_t seed, const TrainResult& result,
                       const std::filesystem::path& metrics, bool learned_temperature) {
  const SourceEvaluation total = result.evaluation.total();
  CompareRun run;
  run.seed = seed;
  run.validation_bits_per_byte = total.bits_per_byte();
  run.validation_perplexity = total.perplexity();
  run.validation_loss = total.loss();
  run.tokens = result.tokens;
  run.seconds = result.seconds;
  run.tokens_per_second = result.tokens_per_second;
  run.peak_memory_bytes = result.peak_memory_bytes;
  run.attention_path = result.attention_path;
  double seconds = 0;
  for (const auto& record : read_metrics(metrics)) {
    const auto step = record.at("global_step").get<int64_t>();
    const double tokens = number(record, "optim/total_tokens");
    const double elapsed = number(record, "speed/total_seconds");
    if (elapsed == elapsed) seconds = elapsed;
    if (const double loss = number(record, "loss/out"); loss == loss) {
      run.curve.push_back({.step = step,
                           .tokens = static_cast<int64_t>(tokens),
                           .seconds = seconds,
                           .train_loss = loss,
                           .ln_z = number(record, "logits/ln_z"),
                           .ln_z_rms = number(record, "logits/ln_z_rms")});
    }
    if (const double bits = number(record, "bits_per_byte/val"); bits == bits) {
      const int64_t at = tokens == tokens ? static_cast<int64_t>(tokens)
                                          : (run.curve.empty() ? 0 : run.curve.back().tokens);
      run.validation_curve.push_back({.step = step, .tokens = at, .bits_per_byte = bits});
    }
    const auto temperature = record.find("focal/temperature");
    if (learned_temperature && temperature != record.end() && temperature->is_array()) {
      run.temperature.push_back(
          {.step = step,
           .per_layer = temperature->get<std::vector<double>>(),
           .clipped_share = std::max(0.0, number(record, "focal/clipped_share"))});
    }
  }
  return run;
}

std::string map_text(const MapConfig& config, const Corpus& corpus) {
  if (!config.text.empty()) return config.text;
  std::string longest;
  for (const CorpusSource& source : corpus.sources()) {
    for (const DocumentSpan& span : source.validation) {
      std::string text;
      const int64_t length = std::min(span.length, config.tokens);
      std::vector<int32_t> tokens(static_cast<size_t>(length));
      source.store.read(span.offset, tokens);
      text = corpus.tokenizer().decode(tokens);
      if (length >= config.tokens) return text;
      if (text.size() > longest.size()) longest = text;
    }
  }
  return longest;
}

std::string printable_piece(const Tokenizer& tokenizer, int32_t token) {
  for (const SpecialToken& special : tokenizer.special_tokens()) {
    if (special.id == token) return special.text;
  }
  const std::string_view piece = tokenizer.piece(token);
  if (piece == "\n") return "\u21B5";
  if (piece == "\t") return "\u21E5";
  if (piece == " ") return "\u2423";
  const int32_t ids[] = {token};
  return tokenizer.decode(ids);
}

AttentionMap attention_map(int64_t layer, int64_t head, const std::vector<std::string>& tokens,
                           const at::Tensor& weights_tt) {
  const at::Tensor weights = weights_tt.to(at::kCPU, at::kFloat).contiguous();
  const auto access = weights.accessor<float, 2>();
  AttentionMap map{.layer = layer, .head = head, .tokens = tokens};
  for (int64_t i = 0; i < std::ssize(tokens); ++i) {
    std::vector<double>& row = map.rows.emplace_back();
    for (int64_t j = 0; j <= i; ++j) row.push_back(access[i][j]);
  }
  return map;
}

std::vector<AttentionMap> collect_maps(const Transformer& model, const Tokenizer& tokenizer,
                                       const std::string& text, int64_t count) {
  std::vector<int32_t> tokens;
  if (tokenizer.bos() >= 0) tokens.push_back(tokenizer.bos());
  tokenizer.append(text, tokens);
  tokens.resize(std::min<size_t>(tokens.size(),
                                 static_cast<size_t>(std::min(count, model.config().context))));
  std::vector<AttentionMap> maps;
  if (tokens.empty()) return maps;
  const at::Tensor ids = at::empty({1, static_cast<int64_t>(tokens.size())}, at::kLong);
  std::copy(tokens.begin(), tokens.end(), ids.mutable_data_ptr<int64_t>());
  ModelInput input;
  input.tokens_bt = ids.to(model.device());
  std::vector<std::string> pieces;
  pieces.reserve(tokens.size());
  for (const int32_t token : tokens) pieces.push_back(printable_piece(tokenizer, token));
  const std::vector<at::Tensor> layers = model.attention_maps(input);
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    for (int64_t head = 0; head < layers[layer].size(0); ++head)
      maps.push_back(attention_map(static_cast<int64_t>(layer), head, pieces, layers[layer][head]));
  }
  return maps;
}

}  // namespace fovea
