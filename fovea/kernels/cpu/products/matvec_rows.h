// The loops of matvec.h, written once and compiled once per instruction set (kernel_table.h
// says why everything here has internal linkage).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/kernel_table.h"
#include "fovea/kernels/cpu/products/matvec_int16_rows.h"
#include "fovea/kernels/cpu/products/matvec_int8_row.h"

namespace fovea::kernels {
namespace {

/// One row times weights that are plain numbers.
template <class W>
struct Product {
  const float* x;
  const W* w;
  float* y;
  int64_t inputs;
};
template <class W>
FOVEA_INLINE Product<W> typed(const MatVec& p) {
  return {p.x, static_cast<const W*>(p.w.data), p.y, p.inputs};
}

/// The first `count` of a vector, zeros behind them.
template <class X>
FOVEA_INLINE Float load_some(const X* x, int64_t count) {
  if (count >= kLanes) return load(x);
  float some[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) {
    some[i] = to_float(x[i]);
    asm("" : "+r"(i));  // GCC would call memcpy(), around which no sum stays in a register
  }
  return load(some);
}

/// The vectors of sums in the order in which two neighbours, then two pairs and so on are the
/// halves that sum_to_four() adds: the bits of the pass, turned round.
constexpr int64_t vector_of_pass(int64_t pass) {
  int64_t turned = 0;
  for (int64_t bit = 1; bit < kPasses; bit *= 2) turned = 2 * turned + (pass / bit) % 2;
  return turned;
}

/// sum_to_four() of kSums floats in several vectors, which it changes.
FOVEA_INLINE Four sum_to_four(Float (&all)[kPasses]) {
#pragma GCC unroll 4
  for (int64_t half = kPasses / 2; half > 0; half /= 2) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < half; ++v) all[v] += all[v + half];
  }
  return sum_to_four(all[0]);
}
FOVEA_INLINE Four sum_to_four(const float* sums) {
  Float all[kPasses];
#pragma GCC unroll 8
  for (int64_t v = 0; v < kPasses; ++v) all[v] = load(sums + v * kLanes);
  return sum_to_four(all);
}

/// halved() of four at once, with the same additions.
FOVEA_INLINE Four halved(Four a, Four b, Four c, Four d) {
  const Four ab =
      __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Four cd =
      __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
  return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

/// The inputs behind the last whole kSums, and the sums of all partial sums but the last two
/// halves.
template <class W>
FOVEA_INLINE Four finished(float* sums, const float* x, const W* w, int64_t rest) {
  for (int64_t j = 0; j < rest; ++j) sums[j] += x[j] * to_float(w[j]);
  return sum_to_four(sums);
}

/// Outputs first, first + stride, ... of one row.
template <class W, int64_t outputs>
FOVEA_INLINE void dot(const Product<W>& p, int64_t first, int64_t stride) {
  float sums[outputs][kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= p.inputs; i += kSums) {
    const float* __restrict x = p.x + i;
    for (int64_t o = 0; o < outputs; ++o) {
      const W* __restrict w = p.w + (first + o * stride) * p.inputs + i;
#pragma omp simd
      for (int64_t l = 0; l < kSums; ++l) sums[o][l] += x[l] * to_float(w[l]);
    }
  }
  for (int64_t o = 0; o < outputs; ++o) {
    const int64_t n = first + o * stride;
    p.y[n] = halved(finished(sums[o], p.x + i, p.w + n * p.inputs + i, p.inputs - i));
  }
}

template <class W>
void one_row(const Product<W>& p, int64_t begin, int64_t end) {
  const int64_t length = (end - begin) / kStretches;
  for (int64_t o = begin; o < begin + length; ++o) dot<W, kStretches>(p, o, length);
  for (int64_t o = begin + length * kStretches; o < end; ++o) dot<W, 1>(p, o, 1);
}

// Packed weights.

/// The scales of some blocks in float32.
template <WeightFormat format>
struct WideScales {
  float d[kScales], m[kScales];

  FOVEA_INLINE void read(const PackedRow<format>& row, int64_t block, int64_t count) {
    widen_scales(row.d + block, count, d);
    if constexpr (block_scales(format) == 2) widen_scales(row.m + block, count, m);
  }
};

/// Vector `v` of the 32 weights of a block, in order: as unpack_row(), bit for bit. Products of d
/// are exact, so that it does not matter whether a sum with them is contracted.
template <WeightFormat format>
FOVEA_INLINE Float unpack_part(const uint8_t* q, float d, [[maybe_unused]] float m, int64_t v) {
  if constexpr (format == WeightFormat::q8_0)
    return load_int8(q + v * kLanes) * d;
  else
    return load_int4 < format == WeightFormat::q4_0 ? 8 : 0,
           block_scales(format) == 2 > (q, v * kLanes, d, m);
}

/// dot() of packed weights: the same additions.
template <WeightFormat format, int64_t outputs>
FOVEA_INLINE void packed_dot(const MatVec& p, int64_t first, int64_t stride) {
  static_assert(kBlock == kSums);
  const int64_t blocks = p.inputs / kBlock;
  Float sums[outputs][kPasses] = {};
  for (int64_t begin = 0; begin < blocks; begin += kScales) {
    const int64_t count = blocks - begin < kScales ? blocks - begin : kScales;
    WideScales<format> scales[outputs];
    const uint8_t* q[outputs];
    for (int64_t o = 0; o < outputs; ++o) {
      const PackedRow<format> row(p, first + o * stride);
      scales[o].read(row, begin, count);
      q[o] = row.q + begin * block_quants(format);
    }
    for (int64_t b = 0; b < count; ++b) {
      const float* const x = p.x + (begin + b) * kBlock;
#pragma GCC unroll 2
      for (int64_t o = 0; o < outputs; ++o) {
#pragma GCC unroll 8
        for (int64_t v = 0; v < kPasses; ++v) {
          const Float w = unpack_part<format>(q[o] + b * block_quants(format), scales[o].d[b],
                                              scales[o].m[b], v);
          sums[o][v] += load(x + v * kLanes) * w;
        }
      }
    }
  }
  for (int64_t o = 0; o < outputs; ++o) p.y[first + o * stride] = halved(sum_to_four(sums[o]));
}

// Several rows.

/// The inputs of kTileRows rows or fewer, up to the last whole kSums. The vectors of all rows for a
/// pass lie side by side: a tile reads one aligned stretch from one end to the other.
class TileInputs {
 public:
  static int64_t floats(int64_t rows, int64_t inputs) { return rows * (inputs / kSums * kSums); }

  FOVEA_INLINE void pack(const MatVec& p, int64_t row, int64_t rows, float* memory) {
    packed_ = memory;
    of_a_pass_ = rows * (p.inputs / kSums) * kLanes;
    for (int64_t pass = 0; pass < kPasses; ++pass) {
      float* to = memory + pass * of_a_pass_;
      for (int64_t i = pass * kLanes; i + kLanes <= p.inputs / kSums * kSums; i += kSums) {
        for (int64_t r = row; r < row + rows; ++r, to += kLanes)
          store(to, load(p.x + r * p.x_stride + i));
      }
    }
  }
  FOVEA_INLINE const float* pass(int64_t n) const { return packed_ + n * of_a_pass_; }

 private:
  float* packed_ = nullptr;
  int64_t of_a_pass_ = 0;
};

/// Weights of the outputs of a tile that are plain numbers.
template <class W>
class PlainWeights {
 public:
  PlainWeights(const MatVec& p, float* /*memory*/)
      : all_(static_cast<const W*>(p.w.data)), inputs_(p.inputs) {}
  static int64_t floats(int64_t /*inputs*/) { return 0; }

  FOVEA_INLINE void at(int64_t first, int64_t /*outputs*/) { w_ = all_ + first * inputs_; }
  /// Float v of kSums inputs.
  FOVEA_INLINE Float part(int64_t o, int64_t sums, int64_t v) const {
    return load(w_ + o * inputs_ + sums * kSums + v * kLanes);
  }
  /// `count` weights from input i on, zeros behind them.
  FOVEA_INLINE Float first(int64_t o, int64_t i, int64_t count) const {
    return load_some(w_ + o * inputs_ + i, count);
  }

 private:
  const W *all_, *w_ = nullptr;
  int64_t inputs_;
};

/// The same, packed: scales are widened once for all rows, the q unpacked where they are used.
template <WeightFormat format>
class PackedWeights {
 public:
  PackedWeights(const MatVec& p, float* memory)
      : p_(p), blocks_(p.inputs / kBlock), scales_(memory) {}
  static int64_t floats(int64_t inputs) { return 2 * kTileOutputs * (inputs / kBlock); }

  FOVEA_INLINE void at(int64_t first, int64_t outputs) {
    for (int64_t o = 0; o < outputs; ++o) {
      const PackedRow<format> row(p_, first + o);
      q_[o] = row.q;
      for (int64_t begin = 0; begin < blocks_; begin += kScales) {
        const int64_t count = blocks_ - begin < kScales ? blocks_ - begin : kScales;
        widen_scales(row.d + begin, count, d(o) + begin);
        if constexpr (block_scales(format) == 2) widen_scales(row.m + begin, count, m(o) + begin);
      }
    }
  }
  FOVEA_INLINE Float part(int64_t o, int64_t sums, int64_t v) const {
    const float m_of_block = block_scales(format) == 2 ? m(o)[sums] : 0.0f;
    return unpack_part<format>(q_[o] + sums * block_quants(format), d(o)[sums], m_of_block, v);
  }
  FOVEA_INLINE Float first(int64_t, int64_t, int64_t) const { return Float{}; }  // no rest

 private:
  FOVEA_INLINE float* d(int64_t o) const { return scales_ + 2 * o * blocks_; }
  FOVEA_INLINE float* m(int64_t o) const { return d(o) + blocks_; }

  const MatVec& p_;
  int64_t blocks_;
  float* scales_;
  const uint8_t* q_[kTileOutputs] = {};
};

/// Outputs begin ... end of a packed matrix as floats, row after row.
template <WeightFormat format>
FOVEA_INLINE void unpack_outputs(const MatVec& p, int64_t begin, int64_t end, float* to) {
  const int64_t blocks = p.inputs / kBlock;
  for (int64_t o = begin; o < end; ++o) {
    const PackedRow<format> row(p, o);
    for (int64_t first = 0; first < blocks; first += kScales) {
      const int64_t count = blocks - first < kScales ? blocks - first : kScales;
      WideScales<format> scales;
      scales.read(row, first, count);
      const uint8_t* q = row.q + first * block_quants(format);
      for (int64_t b = 0; b < count; ++b, q += block_quants(format), to += kBlock) {
#pragma GCC unroll 8
        for (int64_t v = 0; v < kPasses; ++v)
          store(to + v * kLanes, unpack_part<format>(q, scales.d[b], scales.m[b], v));
      }
    }
  }
}

/// The same weights as PackedWeights, unpacked once for all tiles of rows.
template <WeightFormat format>
class UnpackedWeights {
 public:
  UnpackedWeights(const MatVec& p, float* memory) : p_(p), w_(memory) {}
  static int64_t floats(int64_t inputs) { return kTileOutputs * inputs; }

  FOVEA_INLINE void at(int64_t first, int64_t outputs) {
    unpack_outputs<format>(p_, first, first + outputs, w_);
  }
  FOVEA_INLINE Float part(int64_t o, int64_t sums, int64_t v) const {
    return load(w_ + o * p_.inputs + sums * kSums + v * kLanes);
  }
  FOVEA_INLINE Float first(int64_t, int64_t, int64_t) const { return Float{}; }  // no rest

 private:
  const MatVec& p_;
  float* w_;
};

/// Outputs first ... of rows row ...: kLanes partial sums of all of them at a time. They stay in
/// registers while they pass over all inputs, then join those of earlier passes as sum_to_four()
/// would.
template <class Weights, int64_t rows, int64_t outputs>
FOVEA_INLINE void tile(const MatVec& p, const Weights& w, const TileInputs& inputs, int64_t row,
                       int64_t first, const Prefetch& ahead) {
  const int64_t steps = p.inputs / kSums, whole = steps * kSums;
  Float waiting[4][rows][outputs];  // sums of 1, 2, 4, 8 passes
  Float all[rows][outputs];
#pragma GCC unroll 8
  for (int64_t pass = 0; pass < kPasses; ++pass) {
    const int64_t part = vector_of_pass(pass), lane = part * kLanes;
    PrefetchLines lines({ahead.next, ahead.bytes, ahead.pass + pass, ahead.passes}, steps);
#pragma GCC unroll 8
    for (int64_t r = 0; r < rows; ++r) {
#pragma GCC unroll 3
      for (int64_t o = 0; o < outputs; ++o) all[r][o] = Float{};
    }
    const float* x = inputs.pass(part);
    for (int64_t s = 0; s < steps; ++s, x += rows * kLanes) {
      lines.advance<2>();
      Float weights[outputs];
#pragma GCC unroll 3
      for (int64_t o = 0; o < outputs; ++o) weights[o] = w.part(o, s, part);
#pragma GCC unroll 8
      for (int64_t r = 0; r < rows; ++r) {
        Float values = load(x + r * kLanes);
        keep_in_register(values);
#pragma GCC unroll 3
        for (int64_t o = 0; o < outputs; ++o) all[r][o] += values * weights[o];
      }
    }
    if (const int64_t rest = p.inputs - whole - lane; rest > 0) {  // behind the last whole kSums
#pragma GCC unroll 3
      for (int64_t o = 0; o < outputs; ++o) {
        const Float weights = w.first(o, whole + lane, rest);
#pragma GCC unroll 8
        for (int64_t r = 0; r < rows; ++r)
          all[r][o] += load_some(p.x + (row + r) * p.x_stride + whole + lane, rest) * weights;
      }
    }
    const int64_t level = __builtin_ctzll(~static_cast<uint64_t>(pass));
#pragma GCC unroll 3
    for (int64_t l = 0; l < level; ++l) {
#pragma GCC unroll 8
      for (int64_t r = 0; r < rows; ++r) {
#pragma GCC unroll 3
        for (int64_t o = 0; o < outputs; ++o) all[r][o] += waiting[l][r][o];
      }
    }
    if (pass + 1 == kPasses) break;
#pragma GCC unroll 8
    for (int64_t r = 0; r < rows; ++r) {
#pragma GCC unroll 3
      for (int64_t o = 0; o < outputs; ++o) waiting[level][r][o] = all[r][o];
    }
  }
  constexpr int64_t kResults = rows * outputs;
#pragma GCC unroll 6
  for (int64_t at = 0; at < kResults; at += 4) {
    Four four[4] = {};
#pragma GCC unroll 4
    for (int64_t j = 0; j < 4; ++j)
      if (const int64_t to = at + j; to < kResults)
        four[j] = sum_to_four(all[to / outputs][to % outputs]);
    const Four y = halved(four[0], four[1], four[2], four[3]);
#pragma GCC unroll 4
    for (int64_t j = 0; j < 4; ++j)
      if (const int64_t to = at + j; to < kResults)
        p.y[(row + to / outputs) * p.y_stride + first + to % outputs] = y[j];
  }
}

template <class Weights>
void several_rows(const MatVec& p, int64_t begin, int64_t end) {
  constexpr int64_t kMostTiles = (kMatVecRows + kTileRows - 1) / kTileRows;
  const int64_t tiles = (p.rows + kTileRows - 1) / kTileRows;
  const auto row_of = [&](int64_t t) { return p.rows * t / tiles; };
  float* memory = mat_vec_scratch(TileInputs::floats(p.rows, p.inputs) + Weights::floats(p.inputs));
  TileInputs inputs[kMostTiles];
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t rows = row_of(t + 1) - row_of(t);
    inputs[t].pack(p, row_of(t), rows, memory);
    memory += TileInputs::floats(rows, p.inputs);
  }
  Weights weights(p, memory);

  const int64_t bytes = row_bytes(p.w.format, p.inputs);
  const int64_t between = outputs_ahead(bytes, kTileOutputs);
  const auto outputs = [&]<int64_t count>(int64_t first, const char* next) {
    weights.at(first, count);
    for (int64_t t = 0; t < tiles; ++t) {
      const Prefetch ahead{next, count * bytes, t * kPasses, tiles * kPasses};
      with_count<kTileRows>(row_of(t + 1) - row_of(t), [&]<int64_t rows>() FOVEA_ALWAYS {
        tile<Weights, rows, count>(p, weights, inputs[t], row_of(t), first, ahead);
      });
    }
  };
  int64_t o = begin;
  for (; o + kTileOutputs <= end; o += kTileOutputs) {
    const bool more = o + between + kTileOutputs <= end;
    outputs.template operator()<kTileOutputs>(
        o, more ? static_cast<const char*>(p.w.data) + (o + between) * bytes : nullptr);
  }
  for (; o < end; ++o) outputs.template operator()<1>(o, nullptr);
}

template <WeightFormat format>
void packed_range(const MatVec& p, int64_t begin, int64_t end) {
  if (p.activations == Activations::int8) {
    if constexpr (kSumsOutputs) {
      if (p.rows == 1) return int8_row_range<format>(p, begin, end);
    }
    return int8_range<format>(p, begin, end);
  }
  if (p.activations == Activations::int16) return int16_range<format>(p, begin, end);
  if constexpr (kUnpackingRows < kMatVecRows) {
    if (p.rows > kUnpackingRows) return several_rows<UnpackedWeights<format>>(p, begin, end);
  }
  if (p.rows > 1) return several_rows<PackedWeights<format>>(p, begin, end);
  const int64_t length = (end - begin) / kStretches;
  for (int64_t o = begin; o < begin + length; ++o) packed_dot<format, kStretches>(p, o, length);
  for (int64_t o = begin + length * kStretches; o < end; ++o) packed_dot<format, 1>(p, o, 1);
}

template <class W>
void plain_range(const MatVec& p, int64_t begin, int64_t end) {
  if (p.rows > 1) return several_rows<PlainWeights<W>>(p, begin, end);
  one_row(typed<W>(p), begin, end);
}

void mat_vec_range(const MatVec& p, int64_t begin, int64_t end) {
  switch (p.w.format) {
    case WeightFormat::float32:
      return plain_range<float>(p, begin, end);
    case WeightFormat::bfloat16:
      return plain_range<BFloat16>(p, begin, end);
    case WeightFormat::q8_0:
      return packed_range<WeightFormat::q8_0>(p, begin, end);
    case WeightFormat::q4_0:
      return packed_range<WeightFormat::q4_0>(p, begin, end);
    case WeightFormat::q4_1:
      return packed_range<WeightFormat::q4_1>(p, begin, end);
  }
}

void unpack_range(const MatVec& p, int64_t begin, int64_t end, float* to) {
  switch (p.w.format) {
    case WeightFormat::q8_0:
      return unpack_outputs<WeightFormat::q8_0>(p, begin, end, to);
    case WeightFormat::q4_0:
      return unpack_outputs<WeightFormat::q4_0>(p, begin, end, to);
    case WeightFormat::q4_1:
      return unpack_outputs<WeightFormat::q4_1>(p, begin, end, to);
    default:  // not packed
      return;
  }
}

template <Isa isa>
constexpr MatVecTable table_of() {
  return {mat_vec_range, round_rows_to_int8, unpack_range};
}

}  // namespace
}  // namespace fovea::kernels
