// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/scoring.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <numbers>

#include "fovea/attention/key_rule.h"
#include "fovea/base/error.h"
#include "fovea/nn/memory_needs.h"
#include "fovea/runtime/memory_limit.h"
#include "fovea/text/result_json.h"

namespace fovea {
namespace {

/// Bytes of the whitespace character at the head of `text`, 0 for anything else: what `\s` of
/// Python matches.
size_t whitespace(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0; };
  const unsigned a = byte(0), b = byte(1), c = byte(2);
  if (a == ' ' || (a >= '\t' && a <= '\r') || (a >= 0x1C && a <= 0x1F)) return 1;
  if (a == 0xC2 && (b == 0x85 || b == 0xA0)) return 2;
  const bool general =
      a == 0xE2 && b == 0x80 && ((c >= 0x80 && c <= 0x8A) || c == 0xA8 || c == 0xA9 || c == 0xAF);
  const bool rare = (a == 0xE1 && b == 0x9A && c == 0x80) ||
                    (a == 0xE2 && b == 0x81 && c == 0x9F) || (a == 0xE3 && b == 0x80 && c == 0x80);
  return general || rare ? 3 : 0;
}

/// Pieces of split(\s+) (spec 9.3): runs of whitespace plus one. No words in no text.
int64_t count_words(std::string_view text) {
  if (text.empty()) return 0;
  int64_t runs = 0;
  bool inside = false;
  while (!text.empty()) {
    const size_t size = whitespace(text);
    runs += size > 0 && !inside;
    inside = size > 0;
    text.remove_prefix(std::max<size_t>(size, 1));
  }
  return runs + 1;
}

/// One window: which inputs, and which of their targets count.
struct Window {
  int64_t begin = 0;   // index of the first input in the document's inputs
  int64_t length = 0;  // inputs
  int64_t scored = 0;  // the last so many targets count
};

std::vector<Window> windows_of(int64_t targets, const ScoreOptions& options) {
  std::vector<Window> out;
  int64_t done = std::min(targets, options.window);
  out.push_back({0, done, done});
  while (done < targets) {
    const int64_t end = std::min(targets, done + options.stride);
    const int64_t begin = done + options.stride - options.window;
    out.push_back({begin, end - begin, end - done});
    done = end;
  }
  return out;
}

/// [0, 1), [1, 2), [2, 4), [4, 8), ... up to the window.
std::vector<PositionBucket> make_buckets(int64_t window) {
  std::vector<PositionBucket> out{{.from = 0, .to = 1}};
  while (out.back().to < window) {
    const int64_t from = out.back().to;
    out.push_back({.from = from, .to = std::min(2 * from, window)});
  }
  return out;
}

size_t bucket_of(int64_t position) { return std::bit_width(static_cast<uint64_t>(position)); }

/// Refuses a pass over `rows` windows of `length` inputs that the machine cannot hold.
void require_pass(const Transformer& model, int64_t rows, int64_t length) {
  if (model.device().is_cuda()) return;
  constexpr double element = sizeof(float);
  const double tokens = static_cast<double>(rows) * static_cast<double>(length);
  require_memory(
      fmt::format("{} windows of {} tokens", rows, length),
      position_table_bytes(model.config(), length) + pass_bytes(model.config(), tokens, element));
}

using Stream = std::shared_ptr<const std::vector<int64_t>>;

/// Collects windows of one document after the other and scores them a few at a time.
class Scorer {
 public:
  Scorer(const Transformer& model, ScoreResult& result)
      : model_(model), result_(result), observed_(worth_observing(model)) {}

  /// `stream` = start token + tokens of the document.
  void add(const Stream& stream, const Window& window, ScoreTotals& totals) {
    std::vector<Item>& pending = window.length == result_.options.window ? whole_ : shorter_;
    pending.push_back({stream, window, &totals});
    if (std::ssize(pending) == result_.options.rows) score(pending);
  }

  void flush() {
    score(whole_);
    score(shorter_);
  }

 private:
  struct Item {
    Stream stream;
    Window window;
    ScoreTotals* totals;
  };

  void score(std::vector<Item>& pending) {
    if (pending.empty()) return;
    int64_t length = 0;
    for (const Item& item : pending) length = std::max(length, item.window.length);
    const auto rows = std::ssize(pending);
    require_pass(model_, rows, length);
    // Rows are filled up behind their end: a causal model does not see it, and it carries no
    // target.
    at::Tensor tokens = at::full({rows, length}, 0, at::kLong);
    at::Tensor targets = at::full({rows, length}, -1, at::kLong);
    at::Tensor documents = at::full({rows, length}, 0, at::kLong);
    at::Tensor positions = at::arange(length, at::kLong).repeat({rows, 1});
    bool filled_up = false;
    for (int64_t row = 0; row < rows; ++row) {
      const auto& [stream, window, totals] = pending[static_cast<size_t>(row)];
      int64_t* const inputs = tokens.mutable_data_ptr<int64_t>() + row * length;
      int64_t* const next = targets.mutable_data_ptr<int64_t>() + row * length;
      const auto first = stream->begin() + window.begin;
      std::copy(first, first + window.length, inputs);
      const int64_t skipped = window.length - window.scored;
      std::copy(first + 1 + skipped, first + 1 + window.length, next + skipped);
      if (window.length == length) continue;
      documents[row].slice(0, window.length).fill_(1);
      positions[row].slice(0, window.length).sub_(window.length);
      filled_up = true;
    }
    const at::Device device = model_.device();
    ModelInput input{.tokens_bt = tokens.to(device), .documents_bt = {}, .positions_bt = {}};
    if (filled_up) {  // without it the plain causal path is open
      input.documents_bt = documents.to(device);
      input.positions_bt = positions.to(device);
    }
    ForwardInfo info;
    const at::Tensor nll = model_.token_nll(input, targets.to(device), observed_ ? &info : nullptr)
                               .to(at::kCPU, at::kFloat);
    observe(info, pairs_of(pending));
    if (!filled_up) observe_keys(info, rows, length);
    count(pending, nll.contiguous().const_data_ptr<float>(), length);
    pending.clear();
  }

  static double pairs_of(const std::vector<Item>& pending) {
    double pairs = 0.0;
    for (const Item& item : pending) {
      const auto length = static_cast<double>(item.window.length);
      pairs += 0.5 * length * (length + 1.0);
    }
    return pairs;
  }

  static bool worth_observing(const Transformer& model) {
    if (model.has("focus")) return true;
    for (int64_t layer = 0; layer < model.config().layers; ++layer) {
      const KeyRule rule = key_rule(model.config().layer_attention(layer));
      if (rule == KeyRule::selected || rule == KeyRule::lists) return true;
    }
    return false;
  }

  /// Shares are means over windows and layers with Focus, weighted by the pairs of a pass.
  void observe(const ForwardInfo& info, double pairs) {
    result_.plans.clear();
    for (const FocusObservation& layer : info.focus) {
      if (!layer.defined()) continue;
      pairs_ += pairs * layer.pairs.all;
      distant_ += pairs * layer.pairs.distant;
      tiles_ += pairs * layer.tiles_visited();
      result_.plans.push_back(layer.plan());
      weight_ += pairs;
    }
    if (weight_ == 0.0) return;
    result_.pairs_kept = pairs_ / weight_;
    result_.distant_kept = distant_ / weight_;
    result_.tiles_visited = tiles_ / weight_;
  }

  /// The last row counts in the longest windows alone.
  void observe_keys(const ForwardInfo& info, int64_t rows, int64_t length) {
    if (info.keys_read.empty()) return;
    if (length > longest_) last_read_ = last_rows_ = 0.0;
    longest_ = std::max(longest_, length);
    for (const KeysRead& layer : info.keys_read) {
      const auto n = static_cast<double>(length), windows = static_cast<double>(rows);
      read_ += windows * n * layer.row;
      read_of_ += windows * 0.5 * n * (n + 1.0);
      if (length < longest_) continue;
      last_read_ += windows * layer.last_row;
      last_rows_ += windows;
    }
    result_.pairs_read = read_ / read_of_;
    result_.last_keys_read = last_read_ / last_rows_;
  }

  void count(const std::vector<Item>& pending, const float* nll, int64_t length) {
    for (size_t row = 0; row < pending.size(); ++row) {
      const Window& window = pending[row].window;
      WindowScore& score = result_.windows.emplace_back(WindowScore{.tokens = window.scored});
      for (int64_t i = window.length - window.scored; i < window.length; ++i) {
        const double value = nll[static_cast<int64_t>(row) * length + i];
        pending[row].totals->nll += value;
        score.nll += value;
        PositionBucket& bucket = result_.positions[bucket_of(i)];
        bucket.nll += value;
        ++bucket.tokens;
      }
    }
  }

  const Transformer& model_;
  ScoreResult& result_;
  const bool observed_;
  // Whole windows are never filled up, so their attention has every path open.
  std::vector<Item> whole_, shorter_;
  double pairs_ = 0.0, distant_ = 0.0, tiles_ = 0.0, weight_ = 0.0;
  double read_ = 0.0, read_of_ = 0.0, last_read_ = 0.0, last_rows_ = 0.0;
  int64_t longest_ = 0;
};

void require_finite(const ScoreResult& result) {
  for (const auto& [name, totals] : result.sources)
    require<NumericalError>(std::isfinite(totals.nll), "eval",
                            "the loss on '{}' is {}, no finite number: the model's weights are "
                            "damaged or its logits overflow; check the model, or train it again",
                            name, totals.nll);
}

ScoreTotals& totals_of(ScoreResult& result, const std::string& source) {
  for (auto& [name, totals] : result.sources) {
    if (name == source) return totals;
  }
  return result.sources.emplace_back(source, ScoreTotals{}).second;
}

}  // namespace

ScoreOptions ScoreOptions::resolved(const ModelConfig& config) const {
  ScoreOptions out = *this;
  if (out.window == 0) out.window = config.context;
  if (out.stride == 0) out.stride = out.window;
  require<ConfigError>(out.window >= 1, "eval", "'window' must be at least 1; got {}", out.window);
  require<ConfigError>(
      out.stride >= 1 && out.stride <= out.window, "eval",
      "'stride' must be 1 ... window ({}); got {}: a larger one would leave tokens out", out.window,
      out.stride);
  require<ConfigError>(out.rows >= 1, "eval", "'rows' must be at least 1; got {}", out.rows);
  return out;
}

double ScoreTotals::token_perplexity() const { return std::exp(nll / static_cast<double>(tokens)); }
double ScoreTotals::byte_perplexity() const { return std::exp(nll / static_cast<double>(bytes)); }
double ScoreTotals::word_perplexity() const { return std::exp(nll / static_cast<double>(words)); }
double ScoreTotals::bits_per_byte() const {
  return nll / (static_cast<double>(bytes) * std::numbers::ln2);
}

void ScoreTotals::add(const ScoreTotals& other) {
  nll += other.nll;
  documents += other.documents;
  tokens += other.tokens;
  bytes += other.bytes;
  words += other.words;
}

ScoreResult score_text(const Transformer& model, const Tokenizer& tokenizer,
                       std::span<const ScoreDocument> documents, const ScoreOptions& options,
                       const std::function<void(int64_t, int64_t)>& progress) {
  ScoreResult result;
  result.options = options.resolved(model.config());
  result.positions = make_buckets(result.options.window);
  const int32_t start = tokenizer.bos() >= 0 ? tokenizer.bos() : tokenizer.eos();
  require<InputError>(start >= 0, "eval",
                      "the tokenizer must have a begin or end token to predict the first one from");
  for (const ScoreDocument& document : documents) totals_of(result, document.source);

  Scorer scorer(model, result);
  int64_t done = 0, bytes = 0;
  for (const ScoreDocument& document : documents) bytes += std::ssize(document.text);
  for (const ScoreDocument& document : documents) {
    const std::vector<int32_t> tokens = tokenizer.encode(document.text);
    ScoreTotals& totals = totals_of(result, document.source);
    totals.documents += 1;
    totals.tokens += static_cast<int64_t>(tokens.size());
    totals.bytes += static_cast<int64_t>(document.text.size());
    totals.words += count_words(document.text);
    if (!tokens.empty()) {
      auto stream = std::make_shared<std::vector<int64_t>>(1, start);
      stream->insert(stream->end(), tokens.begin(), tokens.end());
      const std::vector<Window> windows = windows_of(std::ssize(tokens), result.options);
      const double share =
          static_cast<double>(document.text.size()) / static_cast<double>(windows.size());
      for (size_t n = 0; n < windows.size(); ++n) {
        if (progress) progress(done + static_cast<int64_t>(share * static_cast<double>(n)), bytes);
        scorer.add(stream, windows[n], totals);
      }
    }
    done += std::ssize(document.text);
    if (progress) progress(done, bytes);
  }
  scorer.flush();
  require_finite(result);
  for (const auto& [name, totals] : result.sources) result.total.add(totals);
  require<InputError>(result.total.tokens > 0, "eval",
                      "the text to score must hold at least one token; got {} documents, all empty",
                      documents.size());
  return result;
}

template <class V>
void describe(V& v, ScoreTotals& t) {
  v("nll", t.nll);
  v("documents", t.documents);
  v("tokens", t.tokens);
  v("bytes", t.bytes);
  v("words", t.words);
  v.derived("token_perplexity", t.token_perplexity());
  v.derived("byte_perplexity", t.byte_perplexity());
  v.derived("word_perplexity", t.word_perplexity());
  v.derived("bits_per_byte", t.bits_per_byte());
}

template <class V>
void describe(V& v, PositionBucket& b) {
  const double mean = b.nll / static_cast<double>(b.tokens);
  v("from", b.from);
  v("to", b.to);
  v("tokens", b.tokens);
  v.derived("nll_per_token", mean);
  v.derived("perplexity", std::exp(mean));
}

template <class V>
void describe(V& v, ScoreResult& r) {
  std::vector<PositionBucket> seen = r.positions;
  std::erase_if(seen, [](const PositionBucket& bucket) { return bucket.tokens == 0; });
  v("window", r.options.window);
  v("stride", r.options.stride);
  v("pairs_kept", r.pairs_kept);
  v("distant_kept", r.distant_kept);
  v.optional("pairs_read", r.pairs_read, r.pairs_read.has_value());
  v.optional("last_keys_read", r.last_keys_read, r.last_keys_read.has_value());
  v("tiles_visited", r.tiles_visited);
  v("plans", r.plans);
  v("total", r.total);
  v("sources", r.sources);
  v.derived("positions", seen);
}

nlohmann::ordered_json ScoreResult::to_json() const { return described_json(*this); }

}  // namespace fovea
