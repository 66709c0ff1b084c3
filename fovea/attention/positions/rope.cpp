// Rotary positions: tables, the rotation with its own gradient, layouts.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/positions/rope.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <cmath>

#include "fovea/base/error.h"
#include "fovea/runtime/own_kernels.h"

namespace fovea {
namespace {

int64_t rotary_width(const RopeSpec& spec, int64_t head_dim) {
  return spec.rotary_dim > 0 ? spec.rotary_dim : head_dim;
}

// out[b,n,t,:] = x rotated; `sign` -1 is the inverse rotation, which is also the gradient of the
// rotation. Rows are distributed over threads; every row is computed alone, so the bits do not
// depend on the split.
template <class T, class F>
void rotate_rows(const at::Tensor& x, at::Tensor& out, const at::Tensor& cos, const at::Tensor& sin,
                 const at::Tensor& positions_bt, F sign) {
  const int64_t n = x.size(1), t = x.size(2), d = x.size(3), half = cos.size(1);
  const int64_t xb = x.stride(0), xn = x.stride(1), xt = x.stride(2);
  const int64_t ob = out.stride(0), on = out.stride(1), ot = out.stride(2);
  const int64_t pb = positions_bt.size(0) == 1 ? 0 : positions_bt.stride(0),
                pt = positions_bt.stride(1);
  const T* x_data = x.const_data_ptr<T>();
  T* out_data = out.data_ptr<T>();
  const F* cos_data = cos.const_data_ptr<F>();
  const F* sin_data = sin.const_data_ptr<F>();
  const int64_t* p_data = positions_bt.const_data_ptr<int64_t>();
  // Grain: about 16k elements a task, where starting a thread stops mattering.
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, n * d));
  at::parallel_for(0, x.size(0) * t, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t b = row / t, i = row % t;
      const int64_t position = p_data[b * pb + i * pt];
      const F* c = cos_data + position * half;
      const F* s = sin_data + position * half;
      for (int64_t h = 0; h < n; ++h) {
        const T* in = x_data + b * xb + h * xn + i * xt;
        T* to = out_data + b * ob + h * on + i * ot;
        for (int64_t k = 0; k < half; ++k) {
          const F first = static_cast<F>(in[k]), second = static_cast<F>(in[k + half]),
                  sine = sign * s[k];
          to[k] = static_cast<T>(first * c[k] - second * sine);
          to[k + half] = static_cast<T>(first * sine + second * c[k]);
        }
        for (int64_t k = 2 * half; k < d; ++k) to[k] = in[k];
      }
    }
  });
}

// The result keeps the memory order of x ([b,t,n,d] projections stay that way), so that the head
// merge after attention and the gradient of the projection need no copy.
at::Tensor rotate_on_cpu(const at::Tensor& x_in, const at::Tensor& cos, const at::Tensor& sin,
                         const at::Tensor& positions_bt, bool inverse) {
  const at::Tensor x = x_in.stride(3) == 1 ? x_in : x_in.contiguous();
  at::Tensor out = at::empty_like(x, x.options(), at::MemoryFormat::Preserve);
  if (x.numel() == 0) return out;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "apply_rope", [&] {
    if (cos.scalar_type() == at::kDouble) {
      rotate_rows<scalar_t, double>(x, out, cos, sin, positions_bt, inverse ? -1.0 : 1.0);
    } else {
      rotate_rows<scalar_t, float>(x, out, cos, sin, positions_bt, inverse ? -1.0f : 1.0f);
    }
  });
  return out;
}

// The same by operations. Products and sums are in the table's number format.
at::Tensor rotate_by_operations(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                                const at::Tensor& positions_bt) {
  const int64_t half = cos.size(1);
  const at::Tensor c = cos.index({positions_bt}).unsqueeze(1),
                   s = sin.index({positions_bt}).unsqueeze(1);
  const at::Tensor first = x.narrow(-1, 0, half), second = x.narrow(-1, half, half);
  at::Tensor out = at::empty_like(x, x.options(), at::MemoryFormat::Preserve);
  out.narrow(-1, 0, half).copy_(at::mul(first, c).addcmul_(second, s, -1.0));
  out.narrow(-1, half, half).copy_(at::mul(second, c).addcmul_(first, s));
  if (const int64_t rest = x.size(-1) - 2 * half; rest > 0)
    out.narrow(-1, 2 * half, rest).copy_(x.narrow(-1, 2 * half, rest));
  return out;
}

class Rotation : public torch::autograd::Function<Rotation> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& cos, const at::Tensor& sin,
                            const at::Tensor& positions_bt) {
    ctx->save_for_backward({cos, sin, positions_bt});
    return has_own_kernels(x) ? rotate_on_cpu(x, cos, sin, positions_bt, false)
                              : rotate_by_operations(x, cos, sin, positions_bt);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    // A rotation is orthogonal: its gradient is the rotation back. Applied as a Function again, so
    // that double backward works.
    const at::Tensor grad = Rotation::apply(grads[0], saved[0], at::neg(saved[1]), saved[2]);
    return {grad, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

std::span<const std::string_view> enum_names(RopeLayout) {
  static constexpr std::array<std::string_view, 2> kNames{"half_split", "interleaved"};
  return kNames;
}

void RopeSpec::describe(FieldVisitor& v) {
  v.real({"theta", "base of the frequencies theta^(-2t/d_r) (spec 6.1)", {1, 1e18}}, theta);
  v.integer({"rotary_dim", "rotated components of a head, even; 0 = all", {0, 1 << 16}},
            rotary_dim);
  v.choice({"layout", "components that turn together: (t, t + d/2) or (2t, 2t + 1)"}, layout);
  v.nested({"scaling", "rule for texts longer than the trained length"}, scaling);
}

void RopeSpec::check(int64_t head_dim) const {
  require<ConfigError>(std::isfinite(theta) && theta > 1.0, "rope",
                       "theta must be a number above 1; got {}", theta);
  const int64_t width = rotary_width(*this, head_dim);
  require<ConfigError>(rotary_dim >= 0 && width <= head_dim, "rope",
                       "rotary_dim must be between 0 (whole head) and head_dim {}; got {}",
                       head_dim, rotary_dim);
  require<ConfigError>(width % 2 == 0, "rope",
                       "the rotary width must be even, because components turn in pairs; got {}",
                       width);
  scaling.check();
}

RopeTable make_rope_table(const RopeSpec& spec, int64_t head_dim, int64_t positions,
                          at::Device device, at::ScalarType dtype) {
  spec.check(head_dim);
  const int64_t width = rotary_width(spec, head_dim);
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const RopeFrequencies f = rope_frequencies(spec.scaling, spec.theta, width, positions);
  const at::Tensor angle_pf =
      at::outer(at::arange(positions, options), at::tensor(f.values, options));
  return {.cos_pf = angle_pf.cos().mul_(f.length).to(dtype).to(device),
          .sin_pf = angle_pf.sin().mul_(f.length).to(dtype).to(device)};
}

at::Tensor apply_rope(const at::Tensor& x_bntd, const RopeTable& table,
                      const at::Tensor& positions) {
  require<ShapeError>(x_bntd.dim() == 4, "rope", "x must be [b, n, t, d]; got {} dimensions",
                      x_bntd.dim());
  const int64_t b = x_bntd.size(0), t = x_bntd.size(2);
  const at::Tensor positions_bt = positions.dim() == 1 ? positions.unsqueeze(0) : positions;
  require<ShapeError>(positions_bt.dim() == 2 && positions_bt.size(1) == t &&
                          (positions_bt.size(0) == 1 || positions_bt.size(0) == b),
                      "rope", "positions must be [{}] or [{}, {}]; got {} values", t, b, t,
                      positions.numel());
  require<ShapeError>(positions_bt.scalar_type() == at::kLong, "rope", "positions must be int64");
  require<ShapeError>(2 * table.cos_pf.size(1) <= x_bntd.size(3), "rope",
                      "the table rotates {} components; x has only {}", 2 * table.cos_pf.size(1),
                      x_bntd.size(3));
  // On a GPU the check would wait for all work before it, and the operations check themselves.
  if (x_bntd.is_cpu() && positions_bt.numel() > 0) {
    const auto [low, high] = at::aminmax(positions_bt);
    require<ShapeError>(
        low.item<int64_t>() >= 0 && high.item<int64_t>() < table.cos_pf.size(0), "rope",
        "positions must lie inside the table of {} rows; got {} ... {}; make a longer table",
        table.cos_pf.size(0), low.item<int64_t>(), high.item<int64_t>());
  }
  return Rotation::apply(x_bntd, table.cos_pf, table.sin_pf, positions_bt);
}

at::Tensor heads_to_half_split(const at::Tensor& x_bntd, int64_t rotary_dim) {
  const int64_t width = rotary_dim > 0 ? rotary_dim : x_bntd.size(3);
  const at::Tensor turned =
      x_bntd.narrow(3, 0, width).unflatten(3, {width / 2, 2}).transpose(3, 4).flatten(3);
  return width == x_bntd.size(3)
             ? turned
             : at::cat({turned, x_bntd.narrow(3, width, x_bntd.size(3) - width)}, 3);
}

at::Tensor convert_rope_layout(const at::Tensor& weight, int64_t head_dim, int64_t rotary_dim,
                               RopeLayout from, RopeLayout to) {
  const int64_t width = rotary_dim > 0 ? rotary_dim : head_dim;
  require<ConfigError>(width % 2 == 0 && width <= head_dim, "rope",
                       "the rotary width must be even and at most head_dim {}; got {}", head_dim,
                       width);
  require<ShapeError>(weight.dim() >= 1 && weight.size(0) % head_dim == 0, "rope",
                      "the rows of the weight must be a multiple of head_dim {}; got {}", head_dim,
                      weight.dim() >= 1 ? weight.size(0) : 0);
  if (from == to) return weight.clone();
  // interleaved row 2t + s  <->  half-split row s d_r/2 + t
  const int64_t half = width / 2;
  std::vector<int64_t> source(static_cast<size_t>(head_dim));
  for (int64_t row = 0; row < head_dim; ++row) {
    if (row >= width) {
      source[row] = row;
    } else if (to == RopeLayout::half_split) {
      source[row] = 2 * (row % half) + row / half;
    } else {
      source[row] = (row % 2) * half + row / 2;
    }
  }
  const at::Tensor order = at::tensor(source, at::kLong).to(weight.device());
  return weight.unflatten(0, {weight.size(0) / head_dim, head_dim})
      .index_select(1, order)
      .flatten(0, 1);
}

}  // namespace fovea
