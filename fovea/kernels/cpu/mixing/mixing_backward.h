// Backward of the mixing kernels: the strips of a task (common/mixing.h has the formulas).
//
// A strip sees its keys twice, kStepKeys at a time, because D_i = sum_j P dP needs whole rows:
//
//   pass A   s0 = q.k -> s1 -> s2 -> P | -> P1 -> P3,  dP3 = dO.v,  dV += P3^T dO | -> dP1 -> dP, D
//   pass B   ds2 = P (dP - D) -> ds1 | -> ds0,  dQ += ds0 K,  dK += ds0^T Q
//
// `|`: a convolution needs the keys of the next step, so the stages after it run one step behind. A
// convolution turned round is the same product with the kernel reversed and the rows at and after
// the result. Between the passes s0, s1, P and dP of the strip are kept.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/mixing/mixing_gradient_frame.h"
#include "fovea/kernels/cpu/mixing/mixing_terms.h"

namespace fovea::kernels {
namespace {

template <class T, class P>
class GradientStrips : private GradientFrame<T, P> {
  using Frame = GradientFrame<T, P>;
  using Frame::after;
  using Frame::before;
  using Frame::begin_strip;
  using Frame::clear_others;
  using Frame::clear_row;
  using Frame::convolve;
  using Frame::convolve_back;
  using Frame::correlate;
  using Frame::earlier_;
  using Frame::eq4_;
  using Frame::exists;
  using Frame::first_;
  using Frame::first_weighted_;
  using Frame::fitted;
  using Frame::frame_;
  using Frame::hide;
  using Frame::key_of;
  using Frame::key_operand;
  using Frame::kPairs;
  using Frame::live;
  using Frame::live_logits;
  using Frame::m_;
  using Frame::make_bad;
  using Frame::seen;
  using Frame::spread;
  using Frame::steps_;
  using Frame::strip_;
  using Frame::t_;
  using typename Frame::Rows;

 public:
  GradientStrips(const MixingGradientTask<T>& task, float* memory)
      : Frame(task, memory), terms_(task.terms) {}

  void run() {
    clear_sums();
    for (int64_t s = t_.strip_begin; s < t_.strip_end; s += t_.strip_step) run_strip(s);
  }

 private:
  void clear_sums() {
    const int64_t keys = (t_.keys + kStepKeys - 1) / kStepKeys * kStepKeys;
    for (int64_t h = 0; h < t_.heads; ++h) {
      for (int64_t n = 0; n < keys * t_.key_width.columns; ++n) t_.head[h].dk[n] = 0.0f;
      for (int64_t n = 0; n < keys * t_.value_width.columns; ++n) t_.head[h].dv[n] = 0.0f;
    }
  }

  void run_strip(int64_t s) {
    begin_strip(s);
    const int64_t to_weights = t_.rows_before > 0 ? 1 : 0, behind = t_.rows_after > 0 ? 1 : 0;
    const int64_t to_outputs = to_weights + behind, to_gradient = to_outputs + behind;
    const bool alone = to_outputs == 0;
    for (int64_t n = 0; alone && n < steps_; ++n) find_step(n);
    for (int64_t n = 0; !alone && n < steps_ + to_gradient; ++n) {
      if (n < steps_) find_logits(n);
      if (in_strip(n - to_weights)) find_weights(n - to_weights);
      if (in_strip(n - to_outputs)) use_weights(n - to_outputs);
      if (!t_.renormalise && in_strip(n - to_gradient)) find_weight_gradient(n - to_gradient);
    }
    if (t_.renormalise) {
      for (int64_t n = 0; n < steps_; ++n) divide_gradient(n);
      for (int64_t n = 0; n < steps_; ++n) find_weight_gradient(n);
    }
    finish_delta();
    for (int64_t n = 0; n < steps_ + to_weights; ++n) {
      if (n < steps_) find_mixed_gradient(n);
      if (in_strip(n - to_weights)) use_logit_gradient(n - to_weights);
    }
    finish_strip();
  }
  bool in_strip(int64_t n) const { return n >= 0 && n < steps_; }

  // ---- pass A ----

  // q.k and dO.v: y[rows][kStepKeys] = left right, rows `rows` of the frame, whole registers of
  // them. `left` is row `left_first` of the frame. Row r is multiplied with scale[r], if not null.
  static void find_products(const Word* left, int64_t left_first, const PackedWidth& width,
                            const Word* panels, const float* scale, float* y, int64_t y_row,
                            Rows rows, int64_t frame) {
    for (int64_t r = rows.begin; r < rows.end; r += kRows) {
      const int64_t at = r + kRows <= frame ? r : frame - kRows;
      find_product<P>(width, left + (at - left_first) * width.pitch, panels,
                      scale != nullptr ? scale + at : nullptr, y + at * y_row, y_row);
    }
  }
  // Results of find_products().
  Rows in_registers(Rows rows) const {
    if (rows.empty()) return rows;
    const int64_t end = rows.begin + (rows.end - rows.begin + kRows - 1) / kRows * kRows;
    return {fitted(rows.begin, kRows), end < frame_ ? end : frame_};
  }

  // Everything of a step without convolutions: no row needs another one.
  void find_step(int64_t n) {
    const Rows rows = live(n, 0);
    each_block(rows, [&](Rows some) FOVEA_ALWAYS {
      find_logits(n, some);
      find_weights(n, some);
      use_weights(n, some);
    });
    for (int64_t h = 0; !rows.empty() && h < t_.heads; ++h) find_value_gradient(h, n, rows);
  }
  // A few rows of all heads pass all stages while they lie in the second-level cache.
  template <class Visit>
  static FOVEA_INLINE void each_block(Rows rows, const Visit& visit) {
    for (int64_t r = rows.begin; r < rows.end; r += kNearRows)
      visit(Rows{r, r + kNearRows < rows.end ? r + kNearRows : rows.end});
  }

  void find_logits(int64_t n) const {
    const Rows rows = live_logits(n);
    clear_others(m_.logits, n, 0, in_registers(rows));
    find_logits(n, rows);
    if (t_.rows_before > 0) spread(m_.logits, n);
  }
  void find_logits(int64_t n, Rows rows) const {
    const Rows written = in_registers(rows);
    for (int64_t h = 0; h < t_.heads; ++h) {
      const MixingGradientHead<T>& head = t_.head[h];
      find_products(m_.q + h * t_.padded_frame() * t_.key_width.pitch, 0, t_.key_width,
                    head.k_columns + key_of(n) * t_.key_width.pitch, kPairs ? m_.factor : nullptr,
                    m_.logits.at(h, 0, n), m_.logits.row, rows, frame_);
      for (int64_t r = written.begin; r < written.end; ++r) {
        float* const row = m_.logits.at(h, r, n);
        if (m_.bad_q[h * t_.padded_frame() + r] != 0) make_bad(row);
        for (int v = 0; t_.capped && v < kStepVectors; ++v) {
          Float slope;
          store(row + v * kLanes, capped<5>(head.rule, load(row + v * kLanes), slope));
        }
        if (!eq4_) hide(row, seen(r, n));
      }
    }
  }

  void find_weights(int64_t n) {
    const Rows rows = live(n, first_weighted_);
    if (t_.rows_before > 0) convolve(m_.logits, m_.convolved, n, rows, before(), true);
    find_weights(n, rows);
    clear_others(m_.weights, n, first_weighted_, rows);
    if (t_.rows_after > 0) spread(m_.weights, n);
  }
  void find_weights(int64_t n, Rows rows) {
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      HeadStep<const float> logits = m_.convolved.inputs(r, n);
      if (t_.mix_before != nullptr) {
        const HeadStep<float> mixed{m_.rows, m_.rows_head};
        mix_heads(logits, t_.mix_before, t_.heads, t_.width_before, mixed);
        logits = {mixed.row, mixed.head};
      }
      if (terms_.active() && exists(first_ + r)) logits = join_terms(r, n, logits);
      for (int64_t h = 0; h < t_.heads; ++h) {
        const Float lse = broadcast(m_.lse2[h * frame_ + r]);
        const float* const from = logits.of(h);
        float* const to = m_.weights.at(h, r, n);
        for (int v = 0; v < kStepVectors; ++v) {
          const Float x = load(from + v * kLanes) * kLog2E - lse;
          store(to + v * kLanes, exp2_seen<Single::kExpDegree>(lanes_of(seen(r, n), v), x));
        }
        if (terms_.weigh()) multiply_gate(seen(r, n), to);
      }
    }
  }

  // Begins the terms of row r and step n, and gives the logits with them.
  HeadStep<const float> join_terms(int64_t r, int64_t n, HeadStep<const float> logits) {
    terms_.template begin<Single::kExpDegree>(first_ + r, key_of(n));
    if (!terms_.change_logits()) return logits;
    const HeadStep<float> to{m_.rows, m_.rows_head};
    terms_.to_logits(
        logits, t_.heads, [this](int64_t h) -> const HeadRule& { return t_.head[h].rule; }, to);
    return {to.row, to.head};
  }
  void multiply_gate(uint64_t some, float* weights) const {
    for (int v = 0; v < kStepVectors; ++v) {
      float* const at = weights + v * kLanes;
      store(at, choose(lanes_of(some, v), load(at) * terms_.factor(v), Float{}));
    }
  }

  void use_weights(int64_t n) const {
    const Rows rows = live(n, earlier_);
    if (t_.rows_after > 0) {
      clear_others(m_.djoined, n, earlier_, rows);
      convolve(m_.weights, m_.joined, n, rows, after(), false);
      for (int64_t h = 0; h < t_.heads; ++h)
        for (int64_t r = rows.begin; r < rows.end; ++r) hide(m_.joined.at(h, r, n), seen(r, n));
    }
    each_block(rows, [&](Rows some) FOVEA_ALWAYS { use_weights(n, some); });
    for (int64_t h = 0; !rows.empty() && h < t_.heads; ++h) find_value_gradient(h, n, rows);
    if (t_.rows_after > 0 && !t_.renormalise) spread(m_.djoined, n);
  }
  void use_weights(int64_t n, Rows rows) const {
    if (t_.renormalise) divide_rows(n, rows);
    find_output_weights(n, rows);
    find_joined_gradient(n, rows);
  }

  void divide_rows(int64_t n, Rows rows) const {
    for (int64_t h = 0; h < t_.heads; ++h) {
      for (int64_t r = rows.begin; r < rows.end; ++r) {
        const Float factor = broadcast(1.0f / t_.head[h].row_sums[first_ + r]);
        float *const row = m_.joined.at(h, r, n), *const sum =
                                                      m_.row_sum + (h * frame_ + r) * kLanes;
        for (int v = 0; v < kStepVectors; ++v) {
          store(sum, load(sum) + load(row + v * kLanes));
          store(row + v * kLanes, load(row + v * kLanes) * factor);
        }
        hide(row, seen(r, n));
      }
    }
  }

  void find_output_weights(int64_t n, Rows rows) const {
    for (int64_t h = 0; h < t_.heads; ++h) {
      find_products(m_.dout + h * kGradientRows * t_.value_width.pitch, earlier_, t_.value_width,
                    t_.head[h].v_columns + key_of(n) * t_.value_width.pitch, nullptr,
                    m_.dlast.at(h, 0, n), m_.dlast.row, rows, frame_);
    }
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      for (int64_t h = 0; h < t_.heads; ++h)
        if (m_.bad_dout[h * t_.padded_frame() + r] != 0) make_bad(m_.dlast.at(h, r, n));
      if (t_.mix_after != nullptr) {
        mix_heads(m_.joined.inputs(r, n), t_.mix_after, t_.heads, t_.width_after,
                  m_.last.heads(r, n));
      }
      for (int64_t h = 0; t_.drops && h < t_.heads; ++h) drop(h, r, n);
    }
  }

  // Dropout acts on the mixed weights (M-16).
  void drop(int64_t h, int64_t r, int64_t n) const {
    const float* const weights =
        t_.mix_after != nullptr ? m_.last.at(h, r, n) : m_.joined.at(h, r, n);
    alignas(64) float keep[kPanel];
    for (int64_t p = 0; p < kStepKeys; p += kPanel) {
      keep_keys(t_.head[h].rule, t_.first_index + first_ + r, key_of(n) + p, keep);
      for (int64_t j = 0; j < kPanel; j += kLanes) {
        float *const last = m_.last.at(h, r, n) + p + j, *const d = m_.dlast.at(h, r, n) + p + j;
        store(last, load(weights + p + j) * load(keep + j));
        store(d, load(d) * load(keep + j));
      }
    }
  }

  void find_value_gradient(int64_t h, int64_t n, Rows rows) const {
    const int64_t columns = t_.value_width.columns;
    const KeyOperand weights = key_operand(m_.last.at(h, earlier_, n), m_.last.row,
                                           {rows.begin - earlier_, rows.end - earlier_}, nullptr);
    const Word* const dout =
        m_.dout_rows + (h * kGradientRows / P::kElements + weights.first) * columns;
    for (int64_t j = 0; j < kStepKeys; j += kRows) {
      add_key_product<P>(t_.head[h].dv + (key_of(n) + j) * columns, columns, weights, j, dout);
    }
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      if (m_.bad_dout[h * t_.padded_frame() + r] == 0) continue;
      for (int64_t j = 0; j < kStepKeys; ++j) {
        float* const dv = t_.head[h].dv + (key_of(n) + j) * columns;
        for (int64_t c = 0; (seen(r, n) >> j & 1) != 0 && c < columns; ++c)
          dv[c] = __builtin_nanf("");
      }
    }
  }

  // From dP3 to dP1 (or dP2, where rows are renormalised), and the gradient of the mix.
  void find_joined_gradient(int64_t n, Rows rows) const {
    if (t_.mix_after != nullptr)
      add_mix_gradient(m_.dlast, m_.joined, n, rows, t_.width_after, m_.mix_after);
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      if (t_.mix_after != nullptr) {
        mix_heads(m_.dlast.inputs(r, n), t_.mix_after_back, t_.heads, t_.width_after,
                  m_.djoined.heads(r, n));
      }
      for (int64_t h = 0; h < t_.heads; ++h) {
        float* const to = m_.djoined.at(h, r, n);
        const float* const from = t_.mix_after != nullptr ? to : m_.dlast.at(h, r, n);
        for (int v = 0; v < kStepVectors; ++v) {
          const Float x = load(from + v * kLanes);
          store(to + v * kLanes, choose(lanes_of(seen(r, n), v), x, Float{}));
        }
        if (t_.renormalise) add_dot(m_.row_dot, m_.joined, m_.djoined, h, r, n);
        if (t_.rows_after == 0) add_dot(m_.delta, m_.weights, m_.dweights, h, r, n);
      }
    }
  }

  void add_mix_gradient(const StepMap& dy, const StepMap& x, int64_t n, Rows rows, int64_t width,
                        float* sums) const {
    for (int64_t r = rows.begin; r < rows.end; r += kRowsTogether) {
      const int64_t count = r + kRowsTogether < rows.end ? kRowsTogether : rows.end - r;
      add_mix_gradient({dy.at(0, r, n), dy.head, dy.row}, {x.at(0, r, n), x.head, x.row}, count,
                       width, sums);
    }
  }
  void add_mix_gradient(HeadRowsOfStep dy, HeadRowsOfStep x, int64_t rows, int64_t width,
                        float* sums) const {
    const int64_t group = padded_heads(width) * padded_heads(width) * kLanes;
    for (int64_t h = 0; h < t_.heads; h += width, sums += group) {
      correlate_heads(width, dy, x, rows, sums);
      dy.data += width * dy.head;
      x.data += width * x.head;
    }
  }

  // sums[h, r] += x.y over the keys of step n, lane by lane.
  FOVEA_INLINE void add_dot(float* sums, const StepMap& x, const StepMap& y, int64_t h, int64_t r,
                            int64_t n) const {
    const float *const a = x.at(h, r, n), *const b = y.at(h, r, n);
    Float sum = load(sums + (h * frame_ + r) * kLanes);
    for (int v = 0; v < kStepVectors; ++v) sum = load(a + v * kLanes) * load(b + v * kLanes) + sum;
    store(sums + (h * frame_ + r) * kLanes, sum);
  }

  // dP1 = (dP2 - sum_j P2 dP2) / n where the row was divided (M-9).
  void divide_gradient(int64_t n) const {
    constexpr float kSmallest = 1e-6f;
    const Rows rows = live(n, earlier_);
    for (int64_t h = 0; h < t_.heads; ++h) {
      for (int64_t r = rows.begin; r < rows.end; ++r) {
        const int64_t at = (h * frame_ + r) * kLanes;
        const float total = sum(load(m_.row_sum + at));
        if (total <= kSmallest && total >= -kSmallest) continue;
        const Float dot = broadcast(sum(load(m_.row_dot + at)));
        const float factor = 1.0f / t_.head[h].row_sums[first_ + r];
        float* const row = m_.djoined.at(h, r, n);
        for (int v = 0; v < kStepVectors; ++v)
          store(row + v * kLanes, (load(row + v * kLanes) - dot) * factor);
        hide(row, seen(r, n));
      }
    }
    spread(m_.djoined, n);
  }

  // From dP1 to dP and D, and the gradient of the kernel.
  void find_weight_gradient(int64_t n) const {
    if (t_.rows_after == 0) return;
    correlate(m_.djoined, m_.weights, n, live(n, earlier_), after(), m_.kernel_after);
    const Rows rows = live(n, first_weighted_);
    convolve_back(m_.djoined, m_.dweights, n, rows, after(), m_.back_after, m_.after_pairs.turned);
    for (int64_t h = 0; h < t_.heads; ++h)
      for (int64_t r = rows.begin; r < rows.end; ++r)
        add_dot(m_.delta, m_.weights, m_.dweights, h, r, n);
  }

  // Sums over lanes, in lane 0; the strip that owns a row takes the gradient of its lse.
  void finish_delta() const {
    for (int64_t h = 0; h < t_.heads; ++h) {
      const MixingGradientHead<T>& head = t_.head[h];
      for (int64_t r = first_weighted_; r < frame_; ++r) {
        const int64_t i = first_ + r;
        if (!exists(i)) continue;
        float* const at = m_.delta + (h * frame_ + r) * kLanes;
        const bool owned = r >= earlier_ && head.dlse != nullptr;
        at[0] = sum(load(at)) - (owned ? head.dlse[i] : 0.0f);
        if (t_.sums.row == nullptr || head.lse[i] == -kInfinity) continue;
        t_.sums.row[h] += static_cast<double>(__builtin_expf(t_.sink[h] - head.lse[i])) *
                          static_cast<double>(at[0]);
      }
    }
  }

  // ---- pass B ----

  // From P and dP to ds1, and the gradients of mix and kernel.
  void find_mixed_gradient(int64_t n) {
    const Rows rows = live(n, first_weighted_);
    if (t_.rows_before > 0) clear_others(m_.dconvolved, n, first_weighted_, rows);
    for (int64_t begin = rows.begin; begin < rows.end; begin += kRowsTogether) {
      const int64_t end = begin + kRowsTogether < rows.end ? begin + kRowsTogether : rows.end;
      for (int64_t h = 0; h < t_.heads; ++h) {
        prefetch_kept(h, end, n);
        for (int64_t r = begin; r < end; ++r) find_softmax_gradient(h, r, n, begin);
      }
      for (int64_t r = begin; terms_.active() && r < end; ++r)
        if (exists(first_ + r)) find_term_gradients(r, n, begin);
      if (t_.mix_before == nullptr) continue;
      add_mix_gradient({m_.rows, m_.rows_head, kStepKeys},
                       {m_.convolved.at(0, begin, n), m_.convolved.head, m_.convolved.row},
                       end - begin, t_.width_before, m_.mix_before);
      for (int64_t r = begin; r < end; ++r) {
        mix_heads({m_.rows + (r - begin) * kStepKeys, m_.rows_head}, t_.mix_before_back, t_.heads,
                  t_.width_before, m_.dconvolved.heads(r, n));
      }
    }
    if (t_.rows_before == 0) return;
    correlate(m_.dconvolved, m_.logits, n, rows, before(), m_.kernel_before);
    spread(m_.dconvolved, n);
  }

  // Rows of head h that the next rows from row r on read.
  FOVEA_INLINE void prefetch_kept(int64_t h, int64_t r, int64_t n) const {
    if (r >= frame_) return;
    for (const StepMap* map : {&m_.weights, &m_.dweights, &m_.convolved}) {
      const float* const row = map->at(h, r, n);
      for (int64_t c = 0; c < kRowsTogether * map->row; c += kLanes) __builtin_prefetch(row + c);
    }
  }

  FOVEA_INLINE void find_softmax_gradient(int64_t h, int64_t r, int64_t n, int64_t begin) const {
    const Float delta = broadcast(m_.delta[(h * frame_ + r) * kLanes]);
    const float *const p = m_.weights.at(h, r, n), *const dp = m_.dweights.at(h, r, n);
    float* const to = mixed_gradient(h, r, n, begin);
    for (int v = 0; v < kStepVectors; ++v)
      store(to + v * kLanes, load(p + v * kLanes) * (load(dp + v * kLanes) - delta));
  }

  // ds3, then ds2, of a row that is taken together with those from `begin` on.
  float* mixed_gradient(int64_t h, int64_t r, int64_t n, int64_t begin) const {
    return t_.mix_before != nullptr ? m_.rows + h * m_.rows_head + (r - begin) * kStepKeys
                                    : m_.dconvolved.at(h, r, n);
  }

  // From ds3 to ds2, and the gradients of gate and biases.
  void find_term_gradients(int64_t r, int64_t n, int64_t begin) {
    terms_.template begin<Single::kExpDegree>(first_ + r, key_of(n));
    const uint64_t here = seen(r, n);
    for (int64_t h = 0; t_.sums.bias != nullptr && h < t_.heads; ++h) {
      const HeadRule& rule = t_.head[h].rule;
      terms_.add_bias_gradient(rule, mixed_gradient(h, r, n, begin), here,
                               t_.sums.bias + h * rule.bias_count);
    }
    if (!t_.terms.gate.active()) return;
    HeadStep<const float> logits = m_.convolved.inputs(r, n);
    if (m_.mixed != nullptr) {
      const HeadStep<float> mixed{m_.mixed, m_.rows_head};
      mix_heads(logits, t_.mix_before, t_.heads, t_.width_before, mixed);
      logits = {mixed.row, mixed.head};
    }
    clear_row(m_.dgate);
    for (int64_t h = 0; h < t_.heads; ++h)
      terms_.add_gate_gradient(logits.of(h), mixed_gradient(h, r, n, begin), m_.dgate);
    if (t_.sums.gate_query == nullptr) return;
    terms_.add_factor_gradients(
        m_.dgate, here, t_.sums.gate_query + (first_ + r) * t_.terms.gate.pitch, t_.sums.gate_key);
  }

  // From ds1 to ds0, dQ and dK.
  void use_logit_gradient(int64_t n) const {
    const Rows rows = live_logits(n);
    if (rows.empty()) return;
    if (t_.rows_before > 0)
      convolve_back(m_.dconvolved, m_.dlogits, n, rows, before(), m_.back_before,
                    m_.before_pairs.turned);
    // Products take whole registers of rows.
    const Rows whole{rows.begin / kRows * kRows, (rows.end + kRows - 1) / kRows * kRows};
    for (int64_t h = 0; h < t_.heads; ++h) {
      for (int64_t r = whole.begin; r < whole.end; ++r) {
        float* const row = m_.dlogits.at(h, r, n);
        if (r < rows.begin || r >= rows.end) {
          clear_row(row);
          continue;
        }
        if (t_.capped) multiply_slope(t_.head[h].rule.soft_cap, m_.logits.at(h, r, n), row);
        if (!eq4_) hide(row, seen(r, n));
        if (t_.dq_columns > t_.key_width.columns) add_turn(h, r, n);
      }
      add_key_products(h, n, rows, whole);
    }
  }

  // Adds a step to ds0 . s0 of a row: all of its kTurnSums, as ds0 cancels in float32.
  FOVEA_INLINE void add_turn(int64_t h, int64_t r, int64_t n) const {
    const float *const ds = m_.dlogits.at(h, r, n), *const s = m_.logits.at(h, r, n);
    Float turn{};
    for (int v = 0; v < kStepVectors; ++v)
      turn = load(ds + v * kLanes) * load(s + v * kLanes) + turn;
    t_.head[h].dq[(strip_ * t_.padded_frame() + r) * t_.dq_columns + t_.key_width.columns] +=
        sum(turn);
  }

  // The derivative of c tanh(s / c) from its value.
  static void multiply_slope(float cap, const float* value, float* row) {
    for (int v = 0; v < kStepVectors; ++v) {
      const Float t = load(value + v * kLanes) * (1.0f / cap);
      store(row + v * kLanes, load(row + v * kLanes) * (1.0f - t * t));
    }
  }

  void add_key_products(int64_t h, int64_t n, Rows rows, Rows whole) const {
    const MixingGradientHead<T>& head = t_.head[h];
    const int64_t columns = t_.key_width.columns;
    // Pairs are scaled here, float32 in q and in finish_strip().
    const KeyOperand slopes = key_operand(m_.dlogits.at(h, 0, n), m_.dlogits.row,
                                          kPairs ? whole : rows, kPairs ? m_.factor : nullptr);
    const Word* const left = kPairs ? m_.step_rows : m_.dlogits.at(h, 0, n);
    const int64_t left_row = kPairs ? kStepWords<P> : m_.dlogits.row;
    float* const dq = head.dq + strip_ * t_.padded_frame() * t_.dq_columns;
    for (int64_t r = whole.begin; r < whole.end; r += kRows) {
      add_row_product<P>(dq + r * t_.dq_columns, t_.dq_columns, columns, left + r * left_row,
                         left_row, head.k_rows + key_of(n) / P::kElements * columns);
    }
    const Word* const q =
        m_.q_rows + (h * t_.padded_frame() / P::kElements + slopes.first) * columns;
    for (int64_t j = 0; j < kStepKeys; j += kRows) {
      add_key_product<P>(head.dk + (key_of(n) + j) * columns, columns, slopes, j, q);
    }
  }

  void finish_strip() const {
    const int64_t columns = t_.key_width.columns;
    for (int64_t h = 0; !kPairs && h < t_.heads; ++h) {
      float* const dq = t_.head[h].dq + strip_ * t_.padded_frame() * t_.dq_columns;
      for (int64_t r = 0; r < frame_; ++r)
        for (int64_t c = 0; c < columns; ++c) dq[r * t_.dq_columns + c] *= m_.factor[r];
    }
    const MixingGradientSums& to = t_.sums;
    if (to.kernel_before != nullptr)
      collect_lanes(m_.kernel_before, t_.heads * before().taps(), to.kernel_before);
    if (to.kernel_after != nullptr)
      collect_lanes(m_.kernel_after, t_.heads * after().taps(), to.kernel_after);
    collect_mix(t_.width_before, m_.mix_before, to.mix_before);
    collect_mix(t_.width_after, m_.mix_after, to.mix_after);
  }

  void collect_mix(int64_t width, float* sums, double* totals) const {
    if (totals == nullptr) return;
    const int64_t padded = padded_heads(width);
    for (int64_t row = 0; row < t_.heads; ++row)  // results of all groups
      collect_lanes(sums + (row / width * padded + row % width) * padded * kLanes, width,
                    totals + row * width);
  }

  RowTerms terms_;
};

template <class T, class P>
int64_t mixing_gradient_floats(const MixingGradientTask<T>& task) {
  return gradient_maps<P>(task, nullptr).floats;
}

template <class T, class P>
void mixing_gradient_strips(const MixingGradientTask<T>& task, float* memory) {
  const FlushDenormals flush;
  [[maybe_unused]] const TileUse tiles;
  GradientStrips<T, P>(task, memory).run();
}

}  // namespace
}  // namespace fovea::kernels
