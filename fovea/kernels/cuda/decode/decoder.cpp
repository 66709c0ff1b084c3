// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cuda/decode/decoder.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/kernels/cuda/decode/launches.h"
#include "fovea/kernels/cuda/machine.h"
#include "fovea/kernels/cuda/recording.h"

namespace fovea::kernels::cuda {
namespace {

constexpr int64_t kMostHeadDim = 256;
/// Keys of a part, at least, and blocks of attention that fill a GPU.
constexpr int64_t kFewestKeys = 64, kBlocks = 512;
/// Graphs that are kept: of every number of texts and of parts that occurred.
constexpr int64_t kMostRecordings = 64;

int small(int64_t x) {
  return static_cast<int>(std::min<int64_t>(x, std::numeric_limits<int>::max()));
}

const uint16_t* bits(const void* x) { return static_cast<const uint16_t*>(x); }

ProductMatrix matrix(const Projection& p) {
  return {bits(p.w.data), p.bias, static_cast<int>(p.outputs)};
}

/// Where the numbers of a step stand, in bytes: graphs know it.
struct NumbersLayout {
  NumbersLayout(int64_t rows, int64_t layers)
      : tokens(sizeof(StepNumbers)),
        sequences(after(tokens, rows * static_cast<int64_t>(sizeof(TokenNumbers)))),
        runs(after(sequences, rows * layers * static_cast<int64_t>(sizeof(SequenceNumbers)))) {}

  static int64_t after(int64_t at, int64_t bytes) { return (at + bytes + 15) / 16 * 16; }

  const int64_t tokens, sequences, runs;
};

class CudaDecoder final : public Decoder<BFloat16> {
 public:
  explicit CudaDecoder(DecoderModel model)
      : m_(std::move(model)), heads_width_((m_.heads + 2 * m_.kv_heads) * m_.head_dim) {
    for (const DecoderLayer& layer : m_.layers)
      most_features_ = std::max(most_features_, layer.groups.features);
  }

  void run(const DecoderStep<BFloat16>& step) override {
    const int64_t rows = std::ssize(step.tokens);
    require<ShapeError>(rows >= 1 && std::ssize(step.layers) == std::ssize(m_.layers), "decoder",
                        "expected a sequence and {} layers; got {} and {}", m_.layers.size(), rows,
                        step.layers.size());
    make_room(step);
    write_numbers(step);
    const int64_t splits = splits_of(step);
    if (std::ssize(recordings_) > kMostRecordings) recordings_.clear();
    std::unique_ptr<Recording>& recording = recordings_[{rows, splits}];
    if (recording == nullptr)
      recording = record([this, rows, splits](Stream stream) { launch_all(rows, splits, stream); });
    recording->replay(services().stream());
  }

 private:
  struct Buffers {
    Buffers(const CudaDecoder& of, int64_t rows_, int64_t numbers_)
        : rows(rows_), numbers_bytes(numbers_), memory(room(of)) {
      const DecoderModel& m = of.m_;
      numbers = memory.take<char>(numbers_bytes);
      for (uint16_t** x : {&streams[0], &streams[1], &y, &mixed, &ffn})
        *x = memory.take<uint16_t>(rows * m.width);
      heads = memory.take<uint16_t>(rows * of.heads_width_);
      out = memory.take<uint16_t>(rows * m.heads * m.head_dim);
      inner = memory.take<uint16_t>(rows * m.ffn_width);
      tau = memory.take<float>(rows);
      features = memory.take<float>(rows * of.most_features_);
      parts = memory.take<float>(rows * m.heads * kMostSplits * (m.head_dim + 2));
      arrived = memory.take<int>(rows * m.heads);
    }
    int64_t room(const CudaDecoder& of) const {
      const DecoderModel& m = of.m_;
      return Scratch::room<char>(numbers_bytes) + 5 * Scratch::room<uint16_t>(rows * m.width) +
             Scratch::room<uint16_t>(rows * of.heads_width_) +
             Scratch::room<uint16_t>(rows * m.heads * m.head_dim) +
             Scratch::room<uint16_t>(rows * m.ffn_width) + Scratch::room<float>(rows) +
             Scratch::room<float>(rows * of.most_features_) +
             Scratch::room<float>(rows * m.heads * kMostSplits * (m.head_dim + 2)) +
             Scratch::room<int>(rows * m.heads);
    }

    const int64_t rows, numbers_bytes;
    Scratch memory;
    char* numbers = nullptr;
    uint16_t *streams[2] = {}, *y = nullptr, *mixed = nullptr, *ffn = nullptr, *heads = nullptr,
             *out = nullptr, *inner = nullptr;
    float *tau = nullptr, *features = nullptr, *parts = nullptr;
    int* arrived = nullptr;
  };

  // Buffers grow; graphs that use the old ones go with them.
  void make_room(const DecoderStep<BFloat16>& step) {
    const int64_t rows = std::ssize(step.tokens);
    size_t runs = 0;
    for (const auto& layer : step.layers)
      for (const auto& cache : layer.caches) runs += cache.shared.size();
    const int64_t bytes = NumbersLayout(rows, std::ssize(m_.layers)).runs +
                          static_cast<int64_t>(runs * sizeof(RunNumbers));
    if (buffers_ != nullptr && rows <= buffers_->rows && bytes <= buffers_->numbers_bytes) return;
    recordings_.clear();
    const int64_t old_rows = buffers_ != nullptr ? buffers_->rows : 0,
                  old_bytes = buffers_ != nullptr ? buffers_->numbers_bytes : 0;
    buffers_.reset();
    buffers_ = std::make_unique<Buffers>(*this, std::max(rows, old_rows),
                                         std::max(bytes + bytes / 2, old_bytes));
    fill_with_zeros(buffers_->arrived,
                    buffers_->rows * m_.heads * static_cast<int64_t>(sizeof(int)),
                    services().stream());
  }

  void write_numbers(const DecoderStep<BFloat16>& step) {
    std::vector<TokenNumbers> tokens;
    for (const TokenPosition& t : step.tokens) tokens.push_back({t.position, t.cos, t.sin});
    std::vector<RunNumbers> runs;
    std::vector<SequenceNumbers> sequences;
    for (const DecoderLayerStep<BFloat16>& layer : step.layers) {
      require<ShapeError>(
          layer.sequences.size() == step.tokens.size() && layer.caches.size() == step.tokens.size(),
          "decoder", "expected {} sequences in every layer; got {} with {} caches",
          step.tokens.size(), layer.sequences.size(), layer.caches.size());
      for (size_t b = 0; b < layer.sequences.size(); ++b)
        sequences.push_back(numbers_of(layer.sequences[b], layer.caches[b], runs));
    }
    const NumbersLayout at(std::ssize(step.tokens), std::ssize(m_.layers));
    const StepNumbers head{.x = bits(step.x),
                           .logits = step.logits,
                           .tokens = there<TokenNumbers>(at.tokens),
                           .sequences = there<SequenceNumbers>(at.sequences)};
    std::vector<char> bytes(static_cast<size_t>(at.runs) + runs.size() * sizeof(RunNumbers));
    const auto put = [&](int64_t place, const auto* x, size_t count) {
      if (count > 0) std::memcpy(bytes.data() + place, x, count * sizeof(*x));
    };
    put(0, &head, 1);
    put(at.tokens, tokens.data(), tokens.size());
    put(at.sequences, sequences.data(), sequences.size());
    put(at.runs, runs.data(), runs.size());
    copy_to_device(buffers_->numbers, bytes.data(), std::ssize(bytes), services().stream());
  }
  template <class T>
  const T* there(int64_t at) const {
    return reinterpret_cast<const T*>(buffers_->numbers + at);
  }

  static SequenceNumbers numbers_of(const SequenceStep& s, const SequenceCache<BFloat16>& cache,
                                    std::vector<RunNumbers>& runs) {
    SequenceNumbers n{.keys = reinterpret_cast<uint16_t*>(cache.keys.at(0, 0, s.first)),
                      .values = reinterpret_cast<uint16_t*>(cache.values.at(0, 0, s.first)),
                      .temperature_sum = s.temperature_sum,
                      .members = s.members,
                      .key_row = small(cache.keys.row),
                      .key_head = small(cache.keys.head),
                      .value_row = small(cache.values.row),
                      .value_head = small(cache.values.head),
                      .written = small(s.key_row),
                      .far_begin = small(s.seen.far.begin),
                      .far_end = small(s.seen.far.end),
                      .far_shift = small(s.seen.far.shift),
                      .near_begin = small(s.seen.near.begin),
                      .near_end = small(s.seen.near.end),
                      .near_shift = small(s.seen.near.shift),
                      .first_run = small(std::ssize(runs)),
                      .runs = small(std::ssize(cache.shared))};
    for (const SharedRun<BFloat16>& run : cache.shared)
      runs.push_back({bits(run.keys.data), bits(run.values.data), small(run.end),
                      small(run.keys.row), small(run.keys.head), small(run.values.row),
                      small(run.values.head)});
    return n;
  }

  // Parts of the keys: powers of two, so that few graphs serve a text that grows.
  int64_t splits_of(const DecoderStep<BFloat16>& step) const {
    int64_t keys = 1;
    for (const auto& layer : step.layers)
      for (const SequenceStep& s : layer.sequences)
        keys =
            std::max(keys, s.seen.near.end - s.seen.near.begin + s.seen.far.end - s.seen.far.begin);
    const int64_t chunks = (m_.heads / m_.kv_heads + kAttentionHeads - 1) / kAttentionHeads,
                  blocks = std::ssize(step.tokens) * m_.kv_heads * chunks;
    int64_t splits = 1;
    while (splits < kMostSplits && splits * kFewestKeys < keys && splits * blocks < kBlocks)
      splits *= 2;
    return splits;
  }

  // What the last half of layer `l` leaves in the stream; the end of the layer before where
  // `l` begins.
  StreamParameters stream_of(int64_t rows, const uint16_t* x, uint16_t* sum) const {
    return {.step = step_numbers(),
            .x = x,
            .sum = sum,
            .norm_of_sum = m_.join == BlockJoin::sum,
            .eps = m_.eps,
            .width = static_cast<int>(m_.width),
            .rows = static_cast<int>(rows)};
  }
  const StepNumbers* step_numbers() const { return there<StepNumbers>(0); }
  void join_feed_forward(const DecoderLayer& layer, StreamParameters& p) const {
    p.first = m_.join == BlockJoin::parallel ? buffers_->mixed : buffers_->ffn;
    p.second = m_.join == BlockJoin::parallel ? buffers_->ffn : nullptr;
    p.after = layer.ffn_out;
  }

  // A product whose input is the norm of the stream.
  void multiply_stream(ProductParameters p, StreamParameters of, Stream stream) const {
    const bool fused = p.rows <= kMostFusedRows && p.end != ProductEnd::logits;
    if (!fused) {
      of.y = buffers_->y;
      check(launch_stream(of, stream), "the decoder's norms");
      p.x = buffers_->y;
    }
    p.stream = of;
    check(launch_product(p, fused, stream), "the decoder's products");
  }
  void multiply(const uint16_t* x, int64_t inputs, const Projection& by, int64_t rows, uint16_t* y,
                Stream stream) const {
    ProductParameters p{.x = x,
                        .inputs = static_cast<int>(inputs),
                        .rows = static_cast<int>(rows),
                        .y = y,
                        .y_stride = static_cast<int>(by.outputs)};
    p.matrices[0] = matrix(by);
    check(launch_product(p, false, stream), "the decoder's products");
  }
  ProductParameters of_stream(int64_t rows, uint16_t* y, int64_t y_stride) const {
    return {.inputs = static_cast<int>(m_.width),
            .rows = static_cast<int>(rows),
            .activation = m_.activation,
            .y = y,
            .y_stride = static_cast<int>(y_stride)};
  }

  void launch_all(int64_t rows, int64_t splits, Stream stream) const {
    const uint16_t* x = nullptr;  // the step's
    int next = 0;
    const auto take = [&] { return buffers_->streams[next++ % 2]; };
    for (size_t l = 0; l < m_.layers.size(); ++l) {
      const DecoderLayer& layer = m_.layers[l];
      uint16_t* const begins = take();
      StreamParameters in = stream_of(rows, x, begins);
      if (l > 0) join_feed_forward(m_.layers[l - 1], in);
      in.before = layer.attention_in;
      in.temperature = layer.temperature, in.layer = static_cast<int>(l), in.tau = buffers_->tau;
      ProductParameters heads = of_stream(rows, buffers_->heads, heads_width_);
      heads.matrices[0] = matrix(layer.q), heads.matrices[1] = matrix(layer.k),
      heads.matrices[2] = matrix(layer.v);
      heads.groups = layer.groups, heads.features = buffers_->features;
      multiply_stream(heads, in, stream);
      attend(l, rows, splits, stream);
      multiply(buffers_->out, m_.heads * m_.head_dim, layer.o, rows, buffers_->mixed, stream);
      x = feed(layer, rows, begins, take, stream);
    }
    StreamParameters last = stream_of(rows, x, nullptr);
    join_feed_forward(m_.layers.back(), last);
    last.before = m_.final_norm;
    ProductParameters logits = of_stream(rows, nullptr, 0);
    logits.matrices[0] = matrix(m_.head);
    logits.end = ProductEnd::logits;
    multiply_stream(logits, last, stream);
  }

  // The feed-forward; gives the stream that it left.
  template <class Take>
  const uint16_t* feed(const DecoderLayer& layer, int64_t rows, const uint16_t* x, const Take& take,
                       Stream stream) const {
    const bool parallel = m_.join == BlockJoin::parallel, gated = layer.gate.w.data != nullptr;
    uint16_t* const sum = parallel ? nullptr : take();
    StreamParameters in = stream_of(rows, x, sum);
    if (!parallel) in.first = buffers_->mixed, in.after = layer.attention_out;
    in.before = parallel && !layer.ffn_in.present() ? layer.attention_in : layer.ffn_in;
    ProductParameters inner = of_stream(rows, buffers_->inner, m_.ffn_width);
    inner.matrices[0] = matrix(gated ? layer.gate : layer.up);
    if (gated) inner.matrices[1] = matrix(layer.up);
    inner.end = gated ? ProductEnd::gate : ProductEnd::activation;
    multiply_stream(inner, in, stream);
    multiply(buffers_->inner, m_.ffn_width, layer.down, rows, buffers_->ffn, stream);
    return parallel ? x : sum;
  }

  void attend(size_t l, int64_t rows, int64_t splits, Stream stream) const {
    const DecoderLayer& layer = m_.layers[l];
    const NumbersLayout at(rows, std::ssize(m_.layers));
    DecodeAttentionParameters p{.tokens = there<TokenNumbers>(at.tokens),
                                .sequences = there<SequenceNumbers>(at.sequences),
                                .runs = there<RunNumbers>(at.runs),
                                .qkv = buffers_->heads,
                                .layer = static_cast<int>(l),
                                .rows = static_cast<int>(rows),
                                .heads = static_cast<int>(m_.heads),
                                .kv_heads = static_cast<int>(m_.kv_heads),
                                .head_dim = static_cast<int>(m_.head_dim),
                                .rotary = layer.rotated ? static_cast<int>(m_.rotary) : 0,
                                .head_norm = layer.head_norm,
                                .q_gain = layer.q_gain,
                                .k_gain = layer.k_gain,
                                .q_length = layer.q_length,
                                .q_length_factor = layer.q_length_factor,
                                .eps = m_.eps,
                                .rule = layer.rule,
                                .groups = layer.groups,
                                .features = buffers_->features,
                                .splits = static_cast<int>(splits),
                                .parts = buffers_->parts,
                                .arrived = buffers_->arrived,
                                .out = buffers_->out};
    p.rule.tau = layer.temperature.bias != nullptr ? buffers_->tau : nullptr;
    check(launch_decode_attention(p, stream), "the decoder's attention");
  }

  const DecoderModel m_;
  const int64_t heads_width_;
  int64_t most_features_ = 0;
  std::unique_ptr<Buffers> buffers_;
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Recording>> recordings_;  // rows, splits
};

bool plain_numbers(const Projection& p) {
  return p.w.data == nullptr || p.w.format == WeightFormat::bfloat16;
}

std::optional<std::string> why_not_layer(const DecoderLayer& layer) {
  for (const Projection* p :
       {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down})
    if (!plain_numbers(*p)) return "matrices that are not bfloat16";
  if (layer.groups.present() && layer.groups.groups > 64) return "more than 64 groups";
  if (layer.caller_attends) return "attention that has no kernel of one token";
  if (layer.rule.gate.form != PairGate::Form::none) return "soft gates";
  if (layer.rule.dropout > 0.0f) return "dropout";
  return std::nullopt;
}

}  // namespace

std::optional<std::string> why_not_decoder(const DecoderModel& model) {
  if (model.layers.empty()) return "no layers";
  if (model.head_dim > kMostHeadDim || model.head_dim % 8 != 0)
    return "head sizes beyond 256, or not of whole eights";
  for (const int64_t inputs : {model.width, model.ffn_width, model.heads * model.head_dim})
    if (inputs % 8 != 0) return "widths that are no multiple of 8";
  if (!plain_numbers(model.head)) return "matrices that are not bfloat16";
  for (const DecoderLayer& layer : model.layers)
    if (auto why = why_not_layer(layer)) return why;
  return std::nullopt;
}

std::unique_ptr<Decoder<BFloat16>> make_decoder(DecoderModel model) {
  if (const auto why = why_not_decoder(model))
    fail<UnsupportedError>("decoder", "the GPU's decoder does not take {}", *why);
  return std::make_unique<CudaDecoder>(std::move(model));
}

}  // namespace fovea::kernels::cuda
