// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cuda/mixing/slabs.h"

#include <algorithm>
#include <vector>

#include "fovea/kernels/cuda/machine.h"

namespace fovea::kernels::cuda::mixing {
namespace {

constexpr int kLead = 8;  // kHalo, so that pieces stay whole
// Rows that a frame of the backward pass overlaps with the next one, and least rows of a frame.
constexpr int kOverlap = kStep, kLeastFrame = 4 * kStep;
constexpr const char* kForward = "mixed attention";
constexpr const char* kBackward = "mixed attention's gradient";

int pitch_of(const Problem& p) { return tiles(p.length, 128) * 128; }

// Rows of a slab: of the machine's slab_bytes, but `least` at least, and no more than the text has.
int slab_rows(const Problem& p, const Bundle& u, int least) {
  const int64_t row_bytes = int64_t{p.batch} * u.count * pitch_of(p) * 2;
  const auto fitting = static_cast<int>(this_machine().slab_bytes / row_bytes / kStep * kStep);
  return std::min(std::max(fitting, least), tiles(p.length, kStep) * kStep);
}

// Slabs of one size, one after the other in scratch.
class Slabs {
 public:
  Slabs(const Problem& p, const Bundle& u, int rows, int count, int lead)
      : rows_(rows),
        pitch_(pitch_of(p)),
        heads_(u.count),
        numbers_(int64_t{p.batch} * (rows + lead) * u.count * pitch_),
        scratch_(count * Scratch::room<uint16_t>(numbers_)) {
    for (int n = 0; n < count; ++n) data_.push_back(scratch_.take<uint16_t>(numbers_));
  }
  Slab at(int n, int row0, int lead = 0) const {
    return {data_[static_cast<size_t>(n)], heads_, rows_, pitch_, row0, lead};
  }

 private:
  int rows_, pitch_, heads_;
  int64_t numbers_;
  Scratch scratch_;
  std::vector<uint16_t*> data_;
};

// The rows of a slab that begins at row0: whole tiles, and where the text ends.
struct Span {
  int row0, tiles, end;

  Span(const Problem& p, int begin, int rows)
      : row0(begin),
        tiles(mixing::tiles(std::min(rows, p.length - begin), kStep)),
        end(std::min(begin + tiles * kStep, p.length)) {}
  int rows() const { return tiles * kStep; }
  int live() const { return end - row0; }
  Owned owned() const { return {row0, end}; }
};

void mixed_forward(const HeadSize& size, const Problem& p, const Bundle& u, Stream stream) {
  const int rows = slab_rows(p, u, kStep);
  const Slabs slabs(p, u, rows, 1, 0);
  for (int row0 = 0; row0 < p.length; row0 += rows) {
    const Span s(p, row0, rows);
    const Slab x = slabs.at(0, row0);
    check(size.tile_product(p, u, p.q, p.k, x, s.rows(), p.scale, false, false, stream), kForward);
    check(mix_forward(p, u, x, s.live(), MixStage::all, stream), kForward);
    check(size.row_product(p, u, x, p.v, p.o, s.rows(), s.owned(), stream), kForward);
  }
}

// The last rows of the previous slab become the lead rows.
void keep_lead(const Problem& p, const Slab& x, Stream stream) {
  const int64_t line = int64_t{x.heads} * x.pitch;
  for (int b = 0; b < p.batch; ++b) {
    uint16_t* const first = x.data + b * (x.rows + x.lead) * line;
    copy_on_device(first, first + x.rows * line, x.lead * line * 2, stream);
  }
}

void convolved_forward(const HeadSize& size, const Problem& p, const Bundle& u, Stream stream) {
  const int rows = slab_rows(p, u, kStep);
  const Slabs slabs(p, u, rows, 2, kLead);
  for (int row0 = 0; row0 < p.length; row0 += rows) {
    const Span s(p, row0, rows);
    const Slab x = slabs.at(0, row0, kLead), y = slabs.at(1, row0);
    if (row0 > 0) keep_lead(p, x, stream);
    check(size.slab_logits(p, u, x, s.end, stream), kForward);
    check(mix_forward(p, u, x, s.live(), MixStage::softmax, stream), kForward);
    check(slab_convolution(p, u, x, y, p.after, SlabConvolution::forward, s.tiles, stream),
          kForward);
    check(mix_forward(p, u, y, s.live(), MixStage::after, stream), kForward);
    check(size.row_product(p, u, y, p.v, p.o, s.rows(), s.owned(), stream), kForward);
  }
}

void mixed_backward(const HeadSize& size, const Problem& p, const Bundle& u, Stream stream) {
  const int rows = slab_rows(p, u, kStep);
  const Slabs slabs(p, u, rows, 2, 0);
  for (int row0 = 0; row0 < p.length; row0 += rows) {
    const Span s(p, row0, rows);
    const Slab x = slabs.at(0, row0), g = slabs.at(1, row0);
    check(size.tile_product(p, u, p.q, p.k, x, s.rows(), p.scale, false, false, stream), kBackward);
    check(size.tile_product(p, u, p.d_o, p.v, g, s.rows(), 1.0f, true, false, stream), kBackward);
    check(mix_backward(p, u, x, g, s.live(), stream), kBackward);
    check(size.row_product(p, u, x, p.k, p.dq, s.rows(), s.owned(), stream), kBackward);
    check(size.key_product(p, u, x, p.q, p.dk, s.owned(), stream), kBackward);
    check(size.key_product(p, u, g, p.d_o, p.dv, s.owned(), stream), kBackward);
  }
}

// One frame of rows: s1, dz, w, y = the convolution after of w; then (y, dz) -> (z, dy), dv, the
// kernel after, dw = its adjoint of dy, ds1, s0 again, the kernel before, ds0, dq, dk.
void convolved_frame(const HeadSize& size, const Problem& p, const Bundle& u, const Slabs& slabs,
                     const Span& f, Owned own, Stream stream) {
  const Slab s = slabs.at(0, f.row0), w = slabs.at(1, f.row0), y = slabs.at(2, f.row0),
             g = slabs.at(3, f.row0);
  const auto ran = [](int error) { check(error, kBackward); };
  ran(size.slab_logits(p, u, s, f.end, stream));
  ran(size.tile_product(p, u, p.d_o, p.v, g, f.rows(), 1.0f, true, false, stream));
  ran(mix_weights(p, u, s, w, f.live(), stream));
  ran(slab_convolution(p, u, w, y, p.after, SlabConvolution::forward, f.tiles, stream));
  ran(mix_after_backward(p, u, y, g, f.live(), own, stream));
  ran(size.key_product(p, u, y, p.d_o, p.dv, own, stream));
  if (p.d_after != nullptr)
    ran(slab_taps(p, u, w, g, p.after, p.d_after, own, f.tiles, f.end, stream));
  ran(slab_convolution(p, u, g, y, p.after, SlabConvolution::adjoint, f.tiles, stream));
  ran(mix_softmax_backward(p, u, s, w, y, f.live(), own, stream));
  if (p.d_before != nullptr) {
    ran(size.tile_product(p, u, p.q, p.k, w, f.rows(), p.scale, false, true, stream));
    ran(slab_taps(p, u, w, y, p.before, p.d_before, own, f.tiles, f.end, stream));
  }
  ran(slab_convolution(p, u, y, s, p.before, SlabConvolution::score_gradient, f.tiles, stream));
  ran(size.row_product(p, u, s, p.k, p.dq, f.rows(), own, stream));
  ran(size.key_product(p, u, s, p.q, p.dk, own, stream));
}

// Frames overlap: one owns all but half of the overlap at either inner end, since weights reach 5
// rows back and gradients of scores 10 rows ahead.
void convolved_backward(const HeadSize& size, const Problem& p, const Bundle& u, Stream stream) {
  const int rows = slab_rows(p, u, kLeastFrame);
  const Slabs slabs(p, u, rows, 4, 0);
  for (int row0 = 0;; row0 += rows - kOverlap) {
    const Span f(p, row0, rows);
    const bool last = row0 + rows >= p.length;
    const Owned own{row0 > 0 ? row0 + kOverlap / 2 : 0, last ? p.length : f.end - kOverlap / 2};
    convolved_frame(size, p, u, slabs, f, own, stream);
    if (last) return;
  }
}

}  // namespace

void bundle_forward(const HeadSize& size, const Problem& p, const Bundle& u, bool convolved,
                    Stream stream) {
  convolved ? convolved_forward(size, p, u, stream) : mixed_forward(size, p, u, stream);
}

void bundle_backward(const HeadSize& size, const Problem& p, const Bundle& u, bool convolved,
                     Stream stream) {
  convolved ? convolved_backward(size, p, u, stream) : mixed_backward(size, p, u, stream);
}

}  // namespace fovea::kernels::cuda::mixing
