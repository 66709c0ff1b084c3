// A whole decoder on raw pointers against the formulas in double precision, token by token (spec
// 7), with hard Focus too (spec 11) and attention of the caller, and its bits for any number of
// threads and neighbours.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/decode/decoder.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/base/rng.h"
#include "fovea/kernels/cpu/pointwise/attention_driver.h"

namespace fovea::kernels::decoder_test {
namespace {

struct Shape {
  std::string name;
  int64_t width, heads, kv_heads, head_dim, ffn, vocab, sequences, tokens;
};

// Odd widths on one thread, and weights enough for all threads.
const Shape kShapes[] = {
    {"small", 20, 3, 1, 8, 27, 11, 2, 5},
    {"parallel", 128, 4, 2, 40, 260, 33, 3, 9},
};
constexpr int64_t kLayers = 2;
constexpr double kEps = 1e-5;

// Hard Focus.
constexpr int64_t kFeatures = 6, kGroups = 5, kTopK = 2, kWindow = 2;
constexpr double kScale = 0.75, kTemperature = 0.5;

using Doubles = std::vector<double>;

/// Values that every number format here holds.
Doubles coarse_normals(Rng& rng, int64_t n, double scale) {
  Doubles all(static_cast<size_t>(n));
  for (double& x : all) {
    BFloat16 rounded;
    from_float(static_cast<float>(scale * rng.normal()), rounded);
    x = static_cast<double>(to_float(rounded));
  }
  return all;
}

template <class T>
std::vector<T> as(const Doubles& x) {
  std::vector<T> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) from_float(static_cast<float>(x[i]), y[i]);
  return y;
}

struct Layer {
  Doubles attention_norm, ffn_norm, q, k, v, o, gate, up, down, q_bias;
  Doubles group_weight, mean, centroids, potentials;
};

bool sees(int64_t query, int64_t key, uint64_t query_members, uint64_t key_members) {
  return query - key < kWindow || (query_members & key_members) != 0;
}

struct Model {
  std::vector<Layer> layers;
  Doubles final_norm, head, cos, sin, embedded;  // embedded: [token][sequence][width]
};

Model make_model(const Shape& s) {
  Rng rng(static_cast<uint64_t>(s.width));
  const auto matrix = [&](int64_t outputs, int64_t inputs) {
    return coarse_normals(rng, outputs * inputs, 1.0 / std::sqrt(static_cast<double>(inputs)));
  };
  const auto gain = [&](int64_t n) {
    Doubles g = coarse_normals(rng, n, 0.25);
    for (double& x : g) x += 1.0;
    return g;
  };
  Model m;
  const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  for (int64_t l = 0; l < kLayers; ++l)
    m.layers.push_back({gain(s.width), gain(s.width), matrix(q, s.width), matrix(kv, s.width),
                        matrix(kv, s.width), matrix(s.width, q), matrix(s.ffn, s.width),
                        matrix(s.ffn, s.width), matrix(s.width, s.ffn), coarse_normals(rng, q, 0.5),
                        matrix(kFeatures, s.width), coarse_normals(rng, s.width, 0.5),
                        matrix(kGroups, kFeatures), coarse_normals(rng, kGroups, 0.5)});
  m.final_norm = gain(s.width);
  m.head = matrix(s.vocab, s.width);
  for (int64_t n = 0; n < s.tokens; ++n) {
    for (int64_t i = 0; i < s.head_dim / 2; ++i) {
      const double angle =
          static_cast<double>(n) /
          std::pow(100.0, 2.0 * static_cast<double>(i) / static_cast<double>(s.head_dim));
      m.cos.push_back(std::cos(angle));
      m.sin.push_back(std::sin(angle));
    }
  }
  m.embedded = coarse_normals(rng, s.tokens * s.sequences * s.width, 1.0);
  return m;
}

Doubles product(const Doubles& w, const Doubles& x) {
  Doubles y(w.size() / x.size());
  for (size_t n = 0; n < w.size(); ++n) y[n / x.size()] += w[n] * x[n % x.size()];
  return y;
}

Doubles normed(const Doubles& x, const Doubles& gain) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  Doubles y = x;
  for (size_t i = 0; i < x.size(); ++i)
    y[i] *= gain[i] / std::sqrt(squares / static_cast<double>(x.size()) + kEps);
  return y;
}

/// Logits of one sequence in double precision, [token][vocab].
class Formula {
 public:
  Formula(const Shape& s, const Model& m, bool focus)
      : s_(s), m_(m), focus_(focus), keys_(kLayers), values_(kLayers), members_(kLayers) {}

  Doubles logits_of(Doubles x, int64_t position) {
    for (size_t l = 0; l < kLayers; ++l) {
      const Layer& w = m_.layers[l];
      add(x, product(w.o, attend(l, normed(x, w.attention_norm), position)));
      const Doubles z = normed(x, w.ffn_norm), gate = product(w.gate, z);
      Doubles inner = product(w.up, z);
      for (size_t i = 0; i < inner.size(); ++i) inner[i] *= gate[i] / (1.0 + std::exp(-gate[i]));
      add(x, product(w.down, inner));
    }
    return product(m_.head, normed(x, m_.final_norm));
  }

 private:
  static void add(Doubles& x, const Doubles& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  Doubles rotated(Doubles x, int64_t position) const {
    const auto half = static_cast<size_t>(s_.head_dim / 2);
    for (size_t at = 0; at < x.size(); at += 2 * half) {
      for (size_t i = 0; i < half; ++i) {
        const double a = x[at + i], b = x[at + half + i];
        const double c = m_.cos[static_cast<size_t>(position) * half + i],
                     n = m_.sin[static_cast<size_t>(position) * half + i];
        x[at + i] = a * c - b * n;
        x[at + half + i] = a * n + b * c;
      }
    }
    return x;
  }

  static uint64_t members(const Layer& w, Doubles y) {
    for (size_t i = 0; i < y.size(); ++i) y[i] = (y[i] - w.mean[i]) * kScale;
    Doubles scores = product(w.centroids, product(w.group_weight, y));
    for (size_t k = 0; k < scores.size(); ++k)
      scores[k] = scores[k] / kTemperature + w.potentials[k];
    uint64_t bits = 0;
    for (size_t k = 0; k < scores.size(); ++k) {
      const auto larger =
          std::count_if(scores.begin(), scores.end(), [&](double x) { return x > scores[k]; });
      if (larger < kTopK) bits |= uint64_t{1} << k;
    }
    return bits;
  }

  Doubles attend(size_t l, const Doubles& y, int64_t position) {
    const Layer& w = m_.layers[l];
    members_[l].push_back(members(w, y));
    const auto seen = [&](size_t key) {
      return !focus_ ||
             sees(position, static_cast<int64_t>(key), members_[l].back(), members_[l][key]);
    };
    Doubles q = product(w.q, y);
    add(q, w.q_bias);
    q = rotated(q, position);
    keys_[l].push_back(rotated(product(w.k, y), position));
    values_[l].push_back(product(w.v, y));
    const auto d = static_cast<size_t>(s_.head_dim);
    Doubles out(q.size());
    for (size_t h = 0; h < static_cast<size_t>(s_.heads); ++h) {
      const size_t at = h / static_cast<size_t>(s_.heads / s_.kv_heads) * d;
      Doubles weights;
      double total = 0;
      for (size_t n = 0; n < keys_[l].size(); ++n) {
        double logit = 0;
        for (size_t i = 0; i < d; ++i) logit += q[h * d + i] * keys_[l][n][at + i];
        weights.push_back(seen(n) ? std::exp(logit / std::sqrt(static_cast<double>(d))) : 0.0);
        total += weights.back();
      }
      for (size_t n = 0; n < weights.size(); ++n) {
        for (size_t i = 0; i < d; ++i) out[h * d + i] += weights[n] / total * values_[l][n][at + i];
      }
    }
    return out;
  }

  const Shape& s_;
  const Model& m_;
  const bool focus_;
  std::vector<std::vector<Doubles>> keys_, values_;  // [layer][token]
  std::vector<std::vector<uint64_t>> members_;       // [layer][token]
};

/// The keys of a layer's tokens, which stand in its cache the last one first.
class Backwards {
 public:
  Backwards(int64_t sequences, int64_t tokens)
      : tokens_(tokens), members_(static_cast<size_t>(sequences)) {}

  int64_t next_row() const { return tokens_ - 1 - std::ssize(members_[0]); }
  int64_t kept() const { return kept_; }

  IntRows choose(std::span<const uint64_t> members) {
    seen_.clear();
    for (size_t b = 0; b < members_.size(); ++b) {
      members_[b].push_back(members[b]);
      const int64_t query = std::ssize(members_[b]) - 1;
      for (int64_t n = 0; n <= query; ++n) {
        if (sees(query, n, members[b], members_[b][static_cast<size_t>(n)]))
          seen_.values.push_back(static_cast<int32_t>(tokens_ - 1 - n));
      }
      seen_.end_row();
    }
    return seen_.view();
  }
  KeyChoice choice() {
    return {.object = this,
            .choose =
                [](void* keys, std::span<const uint64_t> members) {
                  return static_cast<Backwards*>(keys)->choose(members);
                },
            .keep = [](void* keys) { ++static_cast<Backwards*>(keys)->kept_; }};
  }

 private:
  int64_t tokens_, kept_ = 0;
  std::vector<std::vector<uint64_t>> members_;  // [sequence][token]
  IntRowList seen_;
};

/// A model, its cache and its compiled form, for `count` sequences. `by_head`: the cache of every
/// second sequence lies head by head, those between token by token; else the other way round.
template <class T, class W>
class Compiled {
 public:
  Compiled(const Shape& s, const Model& m, int64_t count, bool by_head, bool focus)
      : s_(s),
        count_(count),
        focus_(focus),
        final_norm_(as<float>(m.final_norm)),
        cos_(as<float>(m.cos)),
        sin_(as<float>(m.sin)),
        head_(as<W>(m.head)) {
    const int64_t kv = s.kv_heads * s.head_dim, d = s.head_dim;
    for (const Layer& l : m.layers) {
      const std::vector<T> cache(static_cast<size_t>(count * s.tokens * kv));
      weights_.push_back({as<W>(l.q),
                          as<W>(l.k),
                          as<W>(l.v),
                          as<W>(l.o),
                          as<W>(l.gate),
                          as<W>(l.up),
                          as<W>(l.down),
                          as<float>(l.attention_norm),
                          as<float>(l.ffn_norm),
                          as<float>(l.q_bias),
                          as<float>(l.group_weight),
                          as<float>(l.mean),
                          as<float>(l.centroids),
                          as<float>(l.potentials),
                          cache,
                          cache,
                          Backwards(count, s.tokens),
                          {},
                          {},
                          false});
      weights_.back().sequences.resize(static_cast<size_t>(count));
    }
    for (Weights& w : weights_) {
      const auto rows = [&](std::vector<T>& cache, int64_t b) {
        T* const data = cache.data() + b * s.tokens * kv;
        return by_head == (b % 2 == 0) ? HeadRows<T>{data, 0, s.tokens * d, d}
                                       : HeadRows<T>{data, 0, d, kv};
      };
      for (int64_t b = 0; b < count; ++b)
        w.caches.push_back({.keys = rows(w.keys, b), .values = rows(w.values, b)});
      steps_.push_back({.caches = w.caches, .sequences = w.sequences, .choice = w.choice.choice()});
    }
    compile();
  }

  /// Layer 0 attends by the loops of attend_first().
  void attend_first_layer() {
    weights_.front().caller_attends = true;
    steps_.front().attention = {
        .object = this, .attend = [](void* object, const CallerTokens<T>& tokens) {
          static_cast<Compiled*>(object)->attend_first(tokens.q, tokens.out);
        }};
    compile();
  }

  /// One token of each sequence.
  std::vector<float> step(const T* x, std::span<const int64_t> positions) {
    for (Weights& w : weights_) {
      for (size_t b = 0; b < positions.size(); ++b) {
        const int64_t n = positions[b];
        w.sequences[b] = {.first = 0,
                          .key_row = focus_ ? w.choice.next_row() : n,
                          .seen = {.position = n, .near = {.begin = 0, .end = n + 1}, .far = {}}};
      }
    }
    std::vector<TokenPosition> tokens;
    for (const int64_t n : positions)
      tokens.push_back({.position = n, .cos = cos_.data(), .sin = sin_.data()});
    std::vector<float> logits(static_cast<size_t>(count_ * s_.vocab));
    decoder_->run({.tokens = tokens, .layers = steps_, .x = x, .logits = logits.data()});
    return logits;
  }

  int64_t kept() const { return weights_.front().choice.kept(); }

 private:
  static constexpr WeightFormat kFormat =
      std::is_same_v<W, float> ? WeightFormat::float32 : WeightFormat::bfloat16;
  struct Weights {
    std::vector<W> q, k, v, o, gate, up, down;
    std::vector<float> attention_norm, ffn_norm, q_bias, group_weight, mean, centroids, potentials;
    std::vector<T> keys, values;
    Backwards choice;
    std::vector<SequenceStep> sequences;
    std::vector<SequenceCache<T>> caches;
    bool caller_attends;
  };

  void compile() {
    DecoderModel model{.width = s_.width,
                       .heads = s_.heads,
                       .kv_heads = s_.kv_heads,
                       .head_dim = s_.head_dim,
                       .ffn_width = s_.ffn,
                       .rotary = s_.head_dim,
                       .eps = static_cast<float>(kEps),
                       .layers = {},
                       .final_norm = {RowNorm::Form::rms, final_norm_.data()},
                       .head = {.w = {head_.data(), kFormat}, .outputs = s_.vocab}};
    for (const Weights& w : weights_) model.layers.push_back(layer_of(w));
    decoder_ = make_decoder<T>(std::move(model));
  }

  // Loops that also take the memory which the kernels of a thread share, and more of it every time:
  // what the next layer kept of it would be gone.
  void attend_first(const T* q, T* out) {
    taken_ += int64_t{1} << 16;
    std::fill_n(packed_memory(taken_), taken_, std::numeric_limits<float>::quiet_NaN());
    const Weights& w = weights_.front();
    const int64_t d = s_.head_dim;
    for (int64_t row = 0; row < count_ * s_.heads; ++row) {
      const int64_t b = row / s_.heads, g = row % s_.heads / (s_.heads / s_.kv_heads);
      const SequenceCache<T>& cache = w.caches[static_cast<size_t>(b)];
      Doubles sums(static_cast<size_t>(d));
      double total = 0;
      for (int64_t n = 0; n <= w.sequences[static_cast<size_t>(b)].key_row; ++n) {
        double logit = 0;
        for (int64_t i = 0; i < d; ++i)
          logit += double(to_float(q[row * d + i])) * to_float(cache.keys.at(0, g, n)[i]);
        const double weight = std::exp(logit / std::sqrt(static_cast<double>(d)));
        total += weight;
        for (int64_t i = 0; i < d; ++i) sums[i] += weight * to_float(cache.values.at(0, g, n)[i]);
      }
      for (int64_t i = 0; i < d; ++i)
        from_float(static_cast<float>(sums[i] / total), out[row * d + i]);
    }
  }

  DecoderLayer layer_of(const Weights& w) const {
    const int64_t kv = s_.kv_heads * s_.head_dim, d = s_.head_dim;
    const auto matrix = [](const std::vector<W>& x, int64_t outputs) {
      return Projection{.w = {x.data(), kFormat}, .outputs = outputs};
    };
    DecoderLayer layer{.attention_in = {RowNorm::Form::rms, w.attention_norm.data()},
                       .ffn_in = {RowNorm::Form::rms, w.ffn_norm.data()},
                       .q = matrix(w.q, s_.heads * d),
                       .k = matrix(w.k, kv),
                       .v = matrix(w.v, kv),
                       .o = matrix(w.o, s_.width),
                       .gate = matrix(w.gate, s_.ffn),
                       .up = matrix(w.up, s_.ffn),
                       .down = matrix(w.down, s_.width),
                       .rotated = true,
                       .rule = {.scale = 1.0f / std::sqrt(static_cast<float>(d))},
                       .caller_attends = w.caller_attends};
    layer.q.bias = w.q_bias.data();
    if (focus_) {
      layer.groups = {.weight = w.group_weight.data(),
                      .mean = w.mean.data(),
                      .centroids = w.centroids.data(),
                      .potentials = w.potentials.data(),
                      .scale = &scale_,
                      .temperature = static_cast<float>(kTemperature),
                      .features = kFeatures,
                      .groups = kGroups,
                      .top_k = kTopK};
    }
    return layer;
  }

  const Shape& s_;
  int64_t count_, taken_ = 0;
  bool focus_;
  float scale_ = static_cast<float>(kScale);
  std::vector<float> final_norm_, cos_, sin_;
  std::vector<W> head_;
  std::vector<Weights> weights_;
  std::vector<DecoderLayerStep<T>> steps_;
  std::unique_ptr<Decoder<T>> decoder_;
};

/// Logits of sequences [first, first + count), [token][sequence][vocab].
template <class T, class W>
std::vector<float> decoded(const Shape& s, const Model& m, int64_t first, int64_t count,
                           bool by_head, bool focus = false, bool caller = false) {
  Compiled<T, W> compiled(s, m, count, by_head, focus);
  if (caller) compiled.attend_first_layer();
  const std::vector<T> embedded = as<T>(m.embedded);
  std::vector<float> logits;
  for (int64_t n = 0; n < s.tokens; ++n) {
    const std::vector<int64_t> positions(static_cast<size_t>(count), n);
    const std::vector<float> one =
        compiled.step(embedded.data() + (n * s.sequences + first) * s.width, positions);
    logits.insert(logits.end(), one.begin(), one.end());
  }
  EXPECT_EQ(compiled.kept(), focus ? s.tokens : 0);
  return logits;
}

template <class T, class W>
void expect_the_formula(double tolerance, bool focus = false, bool caller = false) {
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(s.name);
    const Model m = make_model(s);
    const std::vector<float> logits = decoded<T, W>(s, m, 0, s.sequences, true, focus, caller);
    for (int64_t b = 0; b < s.sequences; ++b) {
      Formula formula(s, m, focus);
      for (int64_t n = 0; n < s.tokens; ++n) {
        const auto x = m.embedded.begin() + (n * s.sequences + b) * s.width;
        const Doubles expected = formula.logits_of({x, x + s.width}, n);
        const float* got = logits.data() + (n * s.sequences + b) * s.vocab;
        for (size_t i = 0; i < expected.size(); ++i)
          ASSERT_NEAR(got[i], expected[i], tolerance) << "sequence " << b << ", token " << n;
      }
    }
  }
}

TEST(Decoder, EqualsTheFormulasInFloat32) { expect_the_formula<float, float>(2e-5); }
TEST(Decoder, EqualsTheFormulasWithBfloat16Matrices) { expect_the_formula<float, BFloat16>(2e-5); }
TEST(Decoder, EqualsTheFormulasInBfloat16) { expect_the_formula<BFloat16, BFloat16>(0.1); }

TEST(Decoder, EqualsTheFormulasWithHardFocus) {
  expect_the_formula<float, float>(2e-5, true);
  expect_the_formula<float, BFloat16>(2e-5, true);
}

TEST(Decoder, EqualsTheFormulasWithAttentionOfTheCaller) {
  expect_the_formula<float, float>(2e-5, false, true);
  expect_the_formula<BFloat16, BFloat16>(0.1, false, true);
}

TEST(Decoder, RefusesAStepWithoutTheCallersAttention) {
  std::vector<DecoderLayer> layers(1);
  layers[0].caller_attends = true;
  const auto decoder = make_decoder<float>(
      {.width = 8, .heads = 1, .kv_heads = 1, .head_dim = 8, .ffn_width = 8, .layers = layers});
  const TokenPosition token;
  const SequenceCache<float> cache;
  const SequenceStep sequence;
  const DecoderLayerStep<float> step{.caches = {&cache, 1}, .sequences = {&sequence, 1}};
  EXPECT_THROW(decoder->run({.tokens = {&token, 1}, .layers = {&step, 1}}), ShapeError);
}

TEST(Decoder, HasTheSameBitsForAnyThreadsNeighboursAndOrderOfTheCache) {
  const int before = omp_get_max_threads();
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(s.name);
    const Model m = make_model(s);
    omp_set_num_threads(1);
    const std::vector<float> all = decoded<BFloat16, BFloat16>(s, m, 0, s.sequences, true);
    for (const int threads : {1, 2, 3, 5}) {
      omp_set_num_threads(threads);
      EXPECT_EQ((decoded<BFloat16, BFloat16>(s, m, 0, s.sequences, true)), all) << threads;
    }
    EXPECT_EQ((decoded<BFloat16, BFloat16>(s, m, 0, s.sequences, false)), all);
    omp_set_num_threads(1);
    const std::vector<float> focused =
        decoded<BFloat16, BFloat16>(s, m, 0, s.sequences, true, true);
    EXPECT_NE(focused, all);
    for (const int threads : {2, 3, 5}) {
      omp_set_num_threads(threads);
      EXPECT_EQ((decoded<BFloat16, BFloat16>(s, m, 0, s.sequences, false, true)), focused);
    }
    const std::vector<float> alone = decoded<BFloat16, BFloat16>(s, m, 1, 1, true);
    for (int64_t n = 0; n < s.tokens; ++n) {
      for (int64_t i = 0; i < s.vocab; ++i)
        ASSERT_EQ(alone[n * s.vocab + i], all[(n * s.sequences + 1) * s.vocab + i]);
    }
  }
  omp_set_num_threads(before);
}

// Three products share the work, which read each weight one after the other.
TEST(Decoder, ManySequencesHaveTheBitsOfEachAlone) {
  for (Shape s : kShapes) {
    SCOPED_TRACE(s.name);
    s.sequences = 37;
    s.tokens = 3;
    const Model m = make_model(s);
    for (const bool focus : {false, true}) {
      const std::vector<float> all = decoded<float, BFloat16>(s, m, 0, 37, true, focus);
      for (const int64_t b : {0, 11, 12, 36}) {
        const std::vector<float> alone = decoded<float, BFloat16>(s, m, b, 1, b % 2 == 0, focus);
        for (int64_t n = 0; n < s.tokens; ++n) {
          for (int64_t i = 0; i < s.vocab; ++i)
            ASSERT_EQ(alone[n * s.vocab + i], all[(n * 37 + b) * s.vocab + i]) << b;
        }
      }
    }
  }
}

// Sequences begin at different times and come to lengths of their own.
TEST(Decoder, SequencesOfUnequalLengthsHaveTheBitsOfEachAlone) {
  const Shape& s = kShapes[1];
  const Model m = make_model(s);
  const std::vector<float> x = as<float>(m.embedded);
  const auto token = [&](int64_t b, int64_t n) {
    return x.data() + (n * s.sequences + b) * s.width;
  };
  const std::vector<int64_t> starts{0, 2, 5};
  Compiled<float, float> together(s, m, 3, true, false);
  std::vector<std::vector<float>> joint(3);
  for (int64_t n = 0; n < s.tokens; ++n) {
    std::vector<float> row;
    std::vector<int64_t> positions;
    for (int64_t b = 0; b < 3; ++b) {  // until it begins a sequence repeats its first token
      positions.push_back(std::max<int64_t>(n - starts[b], 0));
      row.insert(row.end(), token(b, positions.back()), token(b, positions.back()) + s.width);
    }
    const std::vector<float> logits = together.step(row.data(), positions);
    for (int64_t b = 0; b < 3; ++b) {
      if (n >= starts[b])
        joint[b].insert(joint[b].end(), logits.begin() + b * s.vocab,
                        logits.begin() + (b + 1) * s.vocab);
    }
  }
  for (int64_t b = 0; b < 3; ++b) {
    Compiled<float, float> alone(s, m, 1, true, false);
    std::vector<float> expected;
    for (int64_t n = 0; n < s.tokens - starts[b]; ++n) {
      const std::vector<float> logits = alone.step(token(b, n), std::vector<int64_t>{n});
      expected.insert(expected.end(), logits.begin(), logits.end());
    }
    EXPECT_EQ(joint[b], expected) << b;
  }
}

TEST(Decoder, RefusesStepsThatDoNotFit) {
  const Shape& s = kShapes[0];
  const Model m = make_model(s);
  Compiled<float, float> compiled(s, m, 2, true, false);
  EXPECT_THROW(compiled.step(nullptr, std::vector<int64_t>{0}), ShapeError);
  EXPECT_THROW(compiled.step(nullptr, {}), ShapeError);
}

TEST(Decoder, RefusesMoreGroupsThanAWordHasBits) {
  DecoderModel model{.head_dim = 64, .layers = std::vector<DecoderLayer>(1)};
  model.layers[0].groups.groups = 65;
  try {
    make_decoder<float>(model);
    FAIL() << "65 groups were taken";
  } catch (const ShapeError& error) {
    EXPECT_NE(std::string(error.what()).find("at most 64 groups; got 65"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace fovea::kernels::decoder_test
