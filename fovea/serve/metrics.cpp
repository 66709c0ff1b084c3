// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/serve/metrics.h"

#include <fmt/format.h>

namespace fovea::serve {
namespace {

/// A label's value: backslash, quote and newline are escaped.
std::string label_text(std::string_view value) {
  std::string text;
  for (const char c : value) {
    if (c == '\\' || c == '"') text += '\\';
    text += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return text;
}

class MetricsText {
 public:
  explicit MetricsText(const std::string& model)
      : label_(fmt::format("model_name=\"{}\"", label_text(model))) {}

  void gauge(std::string_view name, std::string_view help, double value) {
    begin(name, help, "gauge");
    sample(name, "", value);
  }
  void counter(std::string_view name, std::string_view help, double value) {
    begin(name, help, "counter");
    sample(name, "", value);
  }
  void begin(std::string_view name, std::string_view help, std::string_view type) {
    text += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }
  /// `labels`: `key="value"` pairs beside the model's name.
  void sample(std::string_view name, std::string_view labels, double value) {
    text +=
        fmt::format("{}{{{}{}{}}} {}\n", name, label_, labels.empty() ? "" : ",", labels, value);
  }
  void histogram(std::string_view name, std::string_view help, const SecondsHistogram& seconds) {
    begin(name, help, "histogram");
    int64_t below = 0;
    for (size_t i = 0; i < SecondsHistogram::kBounds.size(); ++i) {
      below += seconds.counts[i];
      sample(fmt::format("{}_bucket", name), fmt::format("le=\"{}\"", SecondsHistogram::kBounds[i]),
             static_cast<double>(below));
    }
    sample(fmt::format("{}_bucket", name), "le=\"+Inf\"", static_cast<double>(seconds.count));
    sample(fmt::format("{}_sum", name), "", seconds.sum);
    sample(fmt::format("{}_count", name), "", static_cast<double>(seconds.count));
  }

  std::string text;

 private:
  std::string label_;
};

void add_requests(MetricsText& out, const EngineStatistics& engine) {
  out.gauge("vllm:num_requests_running", "Requests that are read or written now.",
            static_cast<double>(engine.running));
  out.gauge("vllm:num_requests_waiting", "Requests in the queue now.",
            static_cast<double>(engine.waiting));
  out.gauge("vllm:kv_cache_usage_perc", "Share of the cache's memory that is taken, 0 to 1.",
            engine.cache_limit > 0
                ? static_cast<double>(engine.cache_bytes) / static_cast<double>(engine.cache_limit)
                : 0.0);
  constexpr auto kSuccess = "vllm:request_success_total";
  out.begin(kSuccess, "Texts that ended, by reason.", "counter");
  for (const auto& [reason, count] : engine.finished)
    out.sample(kSuccess, fmt::format("finished_reason=\"{}\"", enum_name(reason)),
               static_cast<double>(count));
  constexpr auto kEnded = "fovea:requests_ended_total";
  out.begin(kEnded, "Requests that ended, by outcome.", "counter");
  for (const auto& [outcome, count] : engine.ended)
    out.sample(kEnded, fmt::format("outcome=\"{}\"", enum_name(outcome)),
               static_cast<double>(count));
  out.counter("fovea:requests_refused_total", "Requests that found the queue full.",
              static_cast<double>(engine.refused));
}

void add_tokens(MetricsText& out, const EngineStatistics& engine) {
  out.counter("vllm:prompt_tokens_total", "Tokens of prompts.",
              static_cast<double>(engine.prompt_tokens));
  out.counter("vllm:generation_tokens_total", "Tokens that were written.",
              static_cast<double>(engine.tokens));
  out.counter("vllm:prefix_cache_queries_total", "Tokens of prompts that were looked up.",
              static_cast<double>(engine.prompt_tokens));
  out.counter("vllm:prefix_cache_hits_total", "Tokens of prompts that the prefix cache had.",
              static_cast<double>(engine.cached_tokens));
  out.gauge("fovea:prefix_cache_bytes", "Memory of the prefix cache.",
            static_cast<double>(engine.prefix_bytes));
  out.gauge("fovea:cache_bytes", "Memory of all caches.", static_cast<double>(engine.cache_bytes));
  out.gauge("fovea:sequences", "Texts at work.", static_cast<double>(engine.sequences));
  out.counter("fovea:steps_total", "Steps of one token for all texts.",
              static_cast<double>(engine.steps));
  out.counter("fovea:step_seconds_total", "Time of these steps.", engine.step_seconds);
  out.counter("fovea:chunks_total", "Parts of prompts that were read.",
              static_cast<double>(engine.chunks));
  out.counter("fovea:chunk_seconds_total", "Time of these parts.", engine.chunk_seconds);
}

void add_http(MetricsText& out, const HttpStatistics& http) {
  out.gauge("fovea:http_connections", "Open connections.", static_cast<double>(http.connections));
  out.counter("fovea:http_connections_total", "Connections since the start.",
              static_cast<double>(http.accepted_connections));
  constexpr auto kResponses = "fovea:http_responses_total";
  out.begin(kResponses, "Responses by route and status.", "counter");
  for (const auto& [key, count] : http.responses)
    out.sample(kResponses,
               fmt::format("route=\"{}\",status=\"{}\"", label_text(key.first), key.second),
               static_cast<double>(count));
}

}  // namespace

std::string metrics_text(const EngineStatistics& engine, const HttpStatistics& http,
                         const std::string& model) {
  MetricsText out(model);
  add_requests(out, engine);
  add_tokens(out, engine);
  out.histogram("vllm:request_queue_time_seconds", "From the request to its first part read.",
                engine.queue);
  out.histogram("vllm:time_to_first_token_seconds", "From the request to its first token.",
                engine.first_token);
  out.histogram("vllm:inter_token_latency_seconds", "Between two tokens of a text.",
                engine.between_tokens);
  out.histogram("vllm:e2e_request_latency_seconds", "From the request to its end.", engine.whole);
  add_http(out, http);
  return out.text;
}

}  // namespace fovea::serve
