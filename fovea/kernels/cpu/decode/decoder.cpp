// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/decode/decoder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/kernels/cpu/decode/decoder_buffers.h"
#include "fovea/kernels/cpu/decode/decoder_table.h"
#include "fovea/kernels/cpu/kernel_levels.h"
#include "fovea/kernels/cpu/products/elementwise.h"
#include "fovea/kernels/cpu/products/matvec.h"
#include "fovea/kernels/cpu/team.h"

namespace fovea::kernels {
namespace {

constexpr int64_t kMostGroups = 64;  // memberships are the bits of a word

// Below this many weights a layer, meeting seven times costs more than a second thread saves.
constexpr int64_t kParallelWeights = 131072;

template <class T>
class CpuDecoder final : public Decoder<T> {
 public:
  using Layer = DecoderLayer;

  explicit CpuDecoder(DecoderModel model)
      : p_(std::move(model)),
        all_heads_(p_.heads + 2 * p_.kv_heads),
        q_width_(p_.heads * p_.head_dim),
        qkv_width_(all_heads_ * p_.head_dim),
        inner_stride_(p_.ffn_width + 8),
        parallel_(weights_of_a_layer() > kParallelWeights),
        ones_(static_cast<size_t>(p_.width), 1.0f) {
    for (const Layer& layer : p_.layers)
      most_features_ = std::max(most_features_, layer.groups.features);
  }

  void run(const DecoderStep<T>& step) override {
    check(step);
    set_rows(std::ssize(step.tokens));
    prepare(step);
    // A team walks from behind one attention of the caller up to the next, or to the logits.
    const int64_t count = std::ssize(p_.layers);
    for (int64_t from = -1; from < count;) {
      const int64_t to = next_caller_attention(from + 1);
      place_parts();
      Team::run(parallel_, [&](Team::Member& team) {
        const FloatBuffer scratch(attention_.front().work.scratch_floats());
        if (from >= 0) leave_attention(team, from);
        for (int64_t l = from + 1; l < to; ++l) {
          enter_attention(team, l);
          attend(team, l, scratch.data());
          leave_attention(team, l);
        }
        if (to < count) {
          enter_attention(team, to);
        } else {
          team.each(slices_, [&](int64_t n) { find_logits(n); });
        }
      });
      if (to < count) ask_caller(to);
      from = to;
    }
  }

 private:
  // Memory for so many sequences, into which attention points.
  void set_rows(int64_t rows) {
    if (rows == rows_) return;
    rows_ = rows;
    const auto resize = [rows](auto& x, int64_t columns) {
      x.resize(static_cast<size_t>(rows * columns));
    };
    resize(qkv_, qkv_width_);
    resize(heads_out_, q_width_);
    resize(mixed_, p_.width);
    resize(gate_up_, 2 * p_.ffn_width);
    resize(inner_, inner_stride_);
    resize(ffn_, p_.width);
    resize(features_, most_features_);
    resize(rstd_, all_heads_);
    resize(narrow_, qkv_width_);
    resize(normed_, qkv_width_);
    resize(q_, q_width_);
    resize(out_, q_width_);
    if (std::ranges::any_of(p_.layers, [](const Layer& l) { return l.start_place >= 0; }))
      resize(start_q_, q_width_);
    resize(tau_, 1);
    resize(members_, 1);
    attention_.clear();
    for (const Layer& layer : p_.layers) attention_.emplace_back(attention_of(layer));
    slices_ = 0;  // the buffers of threads have other sizes now
  }

  int64_t next_caller_attention(int64_t l) const {
    while (l < std::ssize(p_.layers) && !p_.layers[l].caller_attends) ++l;
    return l;
  }

  // Queries, keys and values of a layer.
  void enter_attention(Team::Member& team, int64_t l) {
    const Layer& layer = p_.layers[l];
    team.each(slices_, [&](int64_t n) { project(l, n); });
    if (layer.head_norm == HeadNorm::all_rms)
      team.each(2 * rows_, [&](int64_t n) { norm_all_heads(layer, n); });
    const int64_t choices = keys_are_chosen(layer);
    team.each(rows_ * all_heads_ + choices,
              [&](int64_t n) { n < choices ? choose_keys(l) : place_head(l, n - choices); });
  }

  void ask_caller(int64_t l) {
    const Layer& layer = p_.layers[l];
    if (layer.groups.present()) {
      scores_.resize(static_cast<size_t>(rows_ * layer.groups.groups));
      for (int64_t b = 0; b < rows_; ++b)
        score_groups(layer.groups, b, scores_.data() + b * layer.groups.groups);
    }
    const CallerAttention<T>& caller = step_->layers[l].attention;
    caller.attend(caller.object, {.y = buffers_.front().attention_input,
                                  .q = q_.data(),
                                  .start_q = layer.start_place >= 0 ? start_q_.data() : nullptr,
                                  .tau = layer.temperature.bias != nullptr ? tau_.data() : nullptr,
                                  .scores = layer.groups.present() ? scores_.data() : nullptr,
                                  .out = out_.data()});
  }

  // One more piece of work where keys are chosen.
  static int64_t keys_are_chosen(const Layer& layer) {
    return layer.groups.present() && !layer.caller_attends ? 1 : 0;
  }

  void attend(Team::Member& team, int64_t l, float* scratch) {
    const Decode<T>& attention = attention_[l].work;
    const int64_t choices = keys_are_chosen(p_.layers[l]);
    team.each(slices_, [&](int64_t n) { attention.attend_slice(n, slices_, scratch); });
    team.each(rows_ * p_.heads + choices,
              [&](int64_t n) { n < choices ? keep(l) : finish_head(attention, n - choices); });
  }

  // The rest of the layer.
  void leave_attention(Team::Member& team, int64_t l) {
    const Layer& layer = p_.layers[l];
    if (layer.caller_attends)
      team.each(slices_, [&](int64_t n) {
        const int64_t all = rows_ * q_width_, begin = all * n / slices_;
        table_.widen(out_.data() + begin, all * (n + 1) / slices_ - begin,
                     heads_out_.data() + begin);
      });
    team.each(slices_, [&](int64_t n) { multiply(heads_out_, q_width_, layer.o, mixed_, n); });
    team.each(slices_, [&](int64_t n) { feed(layer, n); });
    team.each(slices_, [&](int64_t n) { multiply(inner_, p_.ffn_width, layer.down, ffn_, n); });
  }

  void check(const DecoderStep<T>& step) const {
    const auto given = [](const auto& x) { return std::ssize(x); };
    const int64_t rows = given(step.tokens);
    require<ShapeError>(rows >= 1 && given(step.layers) == given(p_.layers), "decoder",
                        "expected a sequence and {} layers; got {} and {}", p_.layers.size(), rows,
                        step.layers.size());
    for (const DecoderLayerStep<T>& layer : step.layers) {
      require<ShapeError>(given(layer.sequences) == rows && given(layer.caches) == rows, "decoder",
                          "expected {} sequences in every layer; got {} with {} caches", rows,
                          layer.sequences.size(), layer.caches.size());
    }
    for (size_t l = 0; l < p_.layers.size(); ++l)
      require<ShapeError>(
          !p_.layers[l].caller_attends || step.layers[l].attention.attend != nullptr, "decoder",
          "expected the attention of layer {}; got none", l);
  }

  int64_t weights_of_a_layer() const {
    return p_.width * (2 * q_width_ + 2 * p_.kv_heads * p_.head_dim + 3 * p_.ffn_width);
  }

  AttentionDecode<T> attention_of(const Layer& layer) {
    return {.sizes = {.batch = rows_,
                      .heads = p_.heads,
                      .kv_heads = p_.kv_heads,
                      .queries = 1,
                      .keys = 0,
                      .head_dim = p_.head_dim,
                      .value_dim = p_.head_dim},
            .rule = rule_of(layer),
            .q = {q_.data(), q_width_, p_.head_dim, q_width_},
            .out = {out_.data(), q_width_, p_.head_dim, q_width_}};
  }

  // The step's cache, and the memory of all threads.
  void prepare(const DecoderStep<T>& step) {
    step_ = &step;
    part_floats_ = 0;
    for (size_t l = 0; l < attention_.size(); ++l) {
      if (p_.layers[l].caller_attends) continue;
      attention_[l].read(step.layers[l]);
      part_floats_ = std::max(part_floats_, attention_[l].work.part_floats());
    }
    const int64_t slices = parallel_ ? omp_get_max_threads() : 1;
    if (slices != slices_) make_slices(slices);
    for (ThreadBuffers<T>& s : buffers_) std::copy_n(step.x, s.x.size(), s.x.begin());
  }

  // Attention of the caller may use, and move, the memory that this thread's kernels share.
  void place_parts() {
    float* const parts = packed_memory(part_floats_);
    for (LayerAttention<T>& a : attention_) a.work.write_parts_to(parts);
  }

  void make_slices(int64_t slices) {
    slices_ = slices;
    const std::vector<T> row(static_cast<size_t>(rows_ * p_.width));
    const int64_t part = 3 * (p_.ffn_width / slices + 1);  // gate, up and their product
    const ThreadBuffers<T> one{.x = row,
                               .y = row,
                               .sum = row,
                               .mixed = row,
                               .inner = std::vector<T>(static_cast<size_t>(part)),
                               .wide = std::vector<float>(row.size()),
                               .centred = std::vector<float>(most_features_ > 0 ? row.size() : 0)};
    buffers_.assign(static_cast<size_t>(slices), one);
  }

  ScoreParameters rule_of(const Layer& layer) const {
    ScoreParameters rule = layer.rule;
    if (layer.temperature.bias != nullptr) rule.tau = tau_.data();
    return rule;
  }

  // y = norm(x) for all rows; x itself where there is no norm.
  const T* normed(const RowNorm& norm, const T* x, std::vector<T>& y, int64_t n) {
    switch (norm.form) {
      case RowNorm::Form::none:
        return x;
      case RowNorm::Form::rms:
        rms_norm(x, norm.weight != nullptr ? norm.weight : ones_.data(), rows_, n, y.data());
        break;
      case RowNorm::Form::layer:
        for (int64_t r = 0; r < rows_; ++r)
          table_.layer_norm(x + r * n, norm.weight, norm.bias, p_.eps, n, y.data() + r * n);
    }
    return y.data();
  }
  void rms_norm(const T* x, const float* weight, int64_t rows, int64_t n, T* y) const {
    float rstd = 0.0f;  // of gradients
    for (int64_t r = 0; r < rows; ++r)
      rows_table_.rms_norm_forward({.x = x + r * n,
                                    .w = weight,
                                    .y = y + r * n,
                                    .rstd = &rstd,
                                    .rows = 1,
                                    .n = n,
                                    .eps = p_.eps},
                                   0, 1);
  }

  void add_to_stream(ThreadBuffers<T>& s, const T* delta) const {
    table_.add(s.x.data(), delta, rows_ * p_.width, s.sum.data());
    std::swap(s.x, s.sum);
  }
  void narrow_rows(const std::vector<float>& x, const float* bias, std::vector<T>& y) const {
    for (int64_t r = 0; r < rows_; ++r)
      table_.narrow(x.data() + r * p_.width, bias, p_.width, y.data() + r * p_.width);
  }

  // What a half of the block, `delta`, leaves in the residual stream.
  void join(ThreadBuffers<T>& s, const std::vector<T>& delta, const RowNorm& after) {
    if (p_.join == BlockJoin::sum) {
      add_to_stream(s, delta.data());
      normed(after, s.x.data(), s.sum, p_.width);
      std::swap(s.x, s.sum);
    } else {
      add_to_stream(s, normed(after, delta.data(), s.sum, p_.width));
    }
  }
  void join_feed_forward(const Layer& layer, ThreadBuffers<T>& s) {
    narrow_rows(ffn_, layer.down.bias, s.y);
    if (p_.join == BlockJoin::parallel) {
      table_.add(s.mixed.data(), s.y.data(), rows_ * p_.width, s.sum.data());
      std::swap(s.y, s.sum);
    }
    join(s, s.y, layer.ffn_out);
  }

  void find_tau(int64_t l, const ThreadBuffers<T>& s) {
    const TokenTemperature& t = p_.layers[l].temperature;
    for (int64_t b = 0; b < rows_; ++b) {
      float raw = *t.bias;
      if (t.weight != nullptr) {
        const float* const y = s.wide.data() + b * p_.width;
        double score = table_.dot(y, t.weight, p_.width);
        if (t.prefix) {
          const int64_t position = step_->tokens[b].position;
          double* const sum = step_->layers[l].sequences[b].temperature_sum;
          *sum = score + (position > 0 ? sum[-1] : 0.0);
          score = *sum / static_cast<double>(position + 1);
        }
        raw += static_cast<float>(score);
      }
      tau_[static_cast<size_t>(b)] = static_cast<float>(bounded_temperature(raw, t.bounds));
    }
  }

  MatVec product(const std::vector<float>& x, int64_t inputs, const Projection& w, float* y,
                 int64_t y_stride) const {
    return {.x = x.data(),
            .x_stride = std::ssize(x) / rows_,
            .w = w.w,
            .y = y,
            .y_stride = y_stride,
            .rows = rows_,
            .inputs = inputs,
            .outputs = w.outputs,
            .activations = p_.activations};
  }
  void multiply(const std::vector<float>& x, int64_t inputs, const Projection& w,
                std::vector<float>& y, int64_t n) const {
    const std::array one{product(x, inputs, w, y.data(), w.outputs)};
    run_slice(one, n, slices_);
  }

  // The end of the layer before, and queries, keys and values.
  void project(int64_t l, int64_t n) {
    ThreadBuffers<T>& s = buffers_[n];
    const Layer& layer = p_.layers[l];
    if (l > 0) join_feed_forward(p_.layers[l - 1], s);
    s.attention_input = normed(layer.attention_in, s.x.data(), s.y, p_.width);
    table_.widen(s.attention_input, rows_ * p_.width, s.wide.data());
    if (n == 0 && layer.temperature.bias != nullptr) find_tau(l, s);
    float* const k = qkv_.data() + q_width_;
    const std::array three{product(s.wide, p_.width, layer.q, qkv_.data(), qkv_width_),
                           product(s.wide, p_.width, layer.k, k, qkv_width_),
                           product(s.wide, p_.width, layer.v, k + layer.k.outputs, qkv_width_)};
    run_slice(three, n, slices_);
    if (layer.groups.present()) {
      find_features(layer.groups, s, n);
    } else if (!layer.caller_attends) {
      attention_[l].work.prefetch_slice(n, slices_);
    }
  }

  // W_g (y - mean).
  void find_features(const TokenGroups& groups, ThreadBuffers<T>& s, int64_t n) {
    for (size_t i = 0; i < s.wide.size(); ++i)
      s.centred[i] = s.wide[i] - groups.mean[i % static_cast<size_t>(p_.width)];
    const std::array one{MatVec{.x = s.centred.data(),
                                .x_stride = p_.width,
                                .w = {groups.weight},
                                .y = features_.data(),
                                .y_stride = groups.features,
                                .rows = rows_,
                                .inputs = p_.width,
                                .outputs = groups.features}};
    run_slice(one, n, slices_);
  }

  // S / temperature + potential of every group, of a sequence's token.
  void score_groups(const TokenGroups& groups, int64_t b, float* scores) const {
    const float* const z = features_.data() + b * groups.features;
    for (int64_t k = 0; k < groups.groups; ++k) {
      const float score =
          table_.dot(z, groups.centroids + k * groups.features, groups.features) * *groups.scale;
      scores[k] =
          score / groups.temperature + (groups.potentials != nullptr ? groups.potentials[k] : 0.0f);
    }
  }

  // The groups of all tokens, and the keys that follow from them.
  void choose_keys(int64_t l) {
    const TokenGroups& groups = p_.layers[l].groups;
    std::array<float, kMostGroups> scores{};
    for (int64_t b = 0; b < rows_; ++b) {
      score_groups(groups, b, scores.data());
      members_[b] =
          top_groups(std::span(scores).first(static_cast<size_t>(groups.groups)), groups.top_k);
    }
    const KeyChoice& choice = step_->layers[l].choice;
    const IntRows seen = choice.choose(choice.object, members_);
    if (seen.rows() > 0) attention_[l].read(seen);
  }
  void keep(int64_t l) const {
    const KeyChoice& choice = step_->layers[l].choice;
    choice.keep(choice.object);
  }

  // Queries (even n) or keys (odd n) of a sequence.
  void norm_all_heads(const Layer& layer, int64_t n) {
    const bool keys = n % 2 == 1;
    const Projection& from = keys ? layer.k : layer.q;
    const int64_t at = n / 2 * qkv_width_ + (keys ? q_width_ : 0);
    table_.narrow(qkv_.data() + at, from.bias, from.outputs, normed_.data() + at);
    rms_norm(normed_.data() + at, keys ? layer.k_gain : layer.q_gain, 1, from.outputs,
             narrow_.data() + at);
  }

  // One head of queries, keys or values: normed, rotated, and where attention finds it.
  void place_head(int64_t l, int64_t n) {
    const Layer& layer = p_.layers[l];
    const DecoderLayerStep<T>& cache = step_->layers[l];
    const int64_t b = n / all_heads_, h = n % all_heads_, d = p_.head_dim, at = n * d;
    const int64_t key = h - p_.heads, value = key - p_.kv_heads;
    const int64_t row = cache.sequences[b].first + cache.sequences[b].key_row;
    const auto bias = [&](const Projection& from, int64_t head) {
      return from.bias != nullptr ? from.bias + head * d : nullptr;
    };
    if (value >= 0) {
      table_.narrow(qkv_.data() + at, bias(layer.v, value), d,
                    cache.caches[b].values.at(0, value, row));
      return;
    }
    const bool is_key = key >= 0;
    T* const from = narrow_.data() + at;
    if (layer.head_norm != HeadNorm::all_rms)
      table_.narrow(qkv_.data() + at, is_key ? bias(layer.k, key) : bias(layer.q, h), d, from);
    const float* gain = is_key ? layer.k_gain : layer.q_gain;
    const T* in = from;
    if (layer.head_norm == HeadNorm::layer) {
      table_.layer_norm(from, gain, nullptr, p_.eps, d, normed_.data() + at);
      in = normed_.data() + at;
    } else if (layer.head_norm == HeadNorm::length) {
      table_.to_length(from, is_key ? 1.0f : *layer.q_length * layer.q_length_factor, d,
                       normed_.data() + at);
      in = normed_.data() + at;
    }
    const TokenPosition& token = step_->tokens[b];
    const auto rotate = [&](int64_t position, T* out) {
      rows_table_.rotate_forward({.in = in,
                                  .out = out,
                                  .gain = layer.head_norm == HeadNorm::rms ? gain : nullptr,
                                  .rstd = rstd_.data() + n,
                                  .cos = layer.rotated ? token.cos : nullptr,
                                  .sin = layer.rotated ? token.sin : nullptr,
                                  .positions = &position,
                                  .rows = 1,
                                  .heads = 1,
                                  .d = d,
                                  .rotary = layer.rotated ? p_.rotary : 0,
                                  .eps = p_.eps},
                                 0, 1);
    };
    const int64_t query = b * q_width_ + h * d;
    rotate(token.position, is_key ? cache.caches[b].keys.at(0, key, row) : q_.data() + query);
    if (!is_key && layer.start_place >= 0)
      rotate(std::min(token.position, layer.start_place), start_q_.data() + query);
  }

  void finish_head(const Decode<T>& attention, int64_t n) {
    attention.finish(n);
    table_.widen(out_.data() + n * p_.head_dim, p_.head_dim, heads_out_.data() + n * p_.head_dim);
  }

  // What attention leaves in the stream, and the feed-forward up to its activation.
  void feed(const Layer& layer, int64_t n) {
    ThreadBuffers<T>& s = buffers_[n];
    narrow_rows(mixed_, layer.o.bias, s.mixed);
    const T* z = s.attention_input;
    if (p_.join != BlockJoin::parallel) join(s, s.mixed, layer.attention_out);
    if (p_.join != BlockJoin::parallel || layer.ffn_in.present())
      z = normed(layer.ffn_in, s.x.data(), s.y, p_.width);
    table_.widen(z, rows_ * p_.width, s.wide.data());
    const int64_t f = p_.ffn_width, begin = f * n / slices_, end = f * (n + 1) / slices_;
    const bool gated = layer.gate.w.data != nullptr;
    float* const up = gate_up_.data() + f;
    if (gated) run_range(product(s.wide, p_.width, layer.gate, gate_up_.data(), 2 * f), begin, end);
    MatVec of_up = product(s.wide, p_.width, layer.up, up, 2 * f);
    of_up.same_x = gated && layer.gate.w.format == layer.up.w.format;
    run_range(of_up, begin, end);
    for (int64_t r = 0; r < rows_; ++r) apply_activation(layer, s, r, begin, end);
  }

  // Activations [begin, end) of a row.
  void apply_activation(const Layer& layer, ThreadBuffers<T>& s, int64_t r, int64_t begin,
                        int64_t end) {
    const int64_t f = p_.ffn_width, count = end - begin;
    const float* const sums = gate_up_.data() + r * 2 * f + begin;
    T *const first = s.inner.data(), *const second = first + count, *const y = second + count;
    const auto narrow = [&](const Projection& from, const float* x, T* to) {
      table_.narrow(x, from.bias != nullptr ? from.bias + begin : nullptr, count, to);
    };
    if (layer.gate.w.data == nullptr) {
      narrow(layer.up, sums + f, first);
      table_.activate(p_.activation, first, nullptr, count, y);
    } else {
      narrow(layer.gate, sums, first);
      narrow(layer.up, sums + f, second);
      if (p_.activation == Activation::silu) {
        rows_table_.swiglu_forward({.gate_up = first, .y = y, .rows = 1, .f = count}, 0, 1);
      } else {
        table_.activate(p_.activation, first, second, count, y);
      }
    }
    table_.widen(y, count, inner_.data() + r * inner_stride_ + begin);
  }

  void find_logits(int64_t n) {
    ThreadBuffers<T>& s = buffers_[n];
    join_feed_forward(p_.layers.back(), s);
    table_.widen(normed(p_.final_norm, s.x.data(), s.y, p_.width), rows_ * p_.width, s.wide.data());
    const std::array one{product(s.wide, p_.width, p_.head, step_->logits, p_.head.outputs)};
    run_slice(one, n, slices_);
  }

  const DecoderModel p_;
  const int64_t all_heads_, q_width_, qkv_width_;
  // Rows half a cache line apart from whole ones: widths of 512 n would meet in few sets of the
  // first-level cache.
  const int64_t inner_stride_;
  const bool parallel_;
  int64_t rows_ = 0, slices_ = 0, most_features_ = 0, part_floats_ = 0;  // rows_: sequences
  const DecoderStep<T>* step_ = nullptr;
  const DecoderTable<T>& table_ = chosen_kernels<DecoderTable<T>>();
  const ElementwiseTable<T>& rows_table_ = elementwise_table<T>();
  const std::vector<float> ones_;
  std::vector<ThreadBuffers<T>> buffers_;
  std::deque<LayerAttention<T>> attention_;
  // Shared, [rows, columns]: results of products, and the inputs of the next ones.
  std::vector<float> qkv_, heads_out_, mixed_, gate_up_, inner_, ffn_, rstd_, features_, scores_;
  std::vector<T> narrow_, normed_, q_, start_q_, out_;
  std::vector<float> tau_;
  std::vector<uint64_t> members_;
};

void check_model(const DecoderModel& model) {
  require<ShapeError>(!model.layers.empty(), "decoder", "expected a layer; got none");
  for (const DecoderLayer& layer : model.layers) {
    require<ShapeError>(layer.groups.groups <= kMostGroups, "decoder",
                        "expected at most {} groups; got {}", kMostGroups, layer.groups.groups);
  }
  if (const auto why = why_not_attention_kernels(model.head_dim, model.head_dim))
    fail<UnsupportedError>("decoder", "head size {}: {}", model.head_dim, *why);
}

}  // namespace

template <class T>
std::unique_ptr<Decoder<T>> make_decoder(DecoderModel model) {
  check_model(model);
  return std::make_unique<CpuDecoder<T>>(std::move(model));
}
template std::unique_ptr<Decoder<float>> make_decoder(DecoderModel);
template std::unique_ptr<Decoder<BFloat16>> make_decoder(DecoderModel);

}  // namespace fovea::kernels
