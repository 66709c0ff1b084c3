// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/matrix.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include "fovea/attention/backend.h"
#include "fovea/base/error.h"
#include "fovea/nn/matmul.h"

namespace fovea {
namespace {

using kernels::Activations;
using kernels::kBlock;
using kernels::WeightFormat;

constexpr std::array<std::string_view, 5> kFormatNames{"f32", "bf16", "q8_0", "q4_0", "q4_1"};
constexpr std::array kPacked{WeightFormat::q8_0, WeightFormat::q4_0, WeightFormat::q4_1};

/// Weights that are unpacked at a time: they stay in the cache until their product reads them.
constexpr int64_t kUnpackedWeights = 1 << 20;

/// f(row number) on all cores.
template <class F>
void each_row(int64_t rows, int64_t inputs, const F& f) {
  at::parallel_for(0, rows, std::max<int64_t>(1, 65536 / inputs), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) f(r);
  });
}

}  // namespace

std::span<const std::string_view> enum_names(WeightFormat) { return kFormatNames; }

std::span<const std::string_view> enum_names(Activations) {
  static constexpr std::array<std::string_view, 3> names{"exact", "int16", "int8"};
  return names;
}

bool is_packed(const at::Tensor& matrix) {
  return matrix.defined() && matrix.scalar_type() == at::kByte && matrix.dim() == 3;
}

std::optional<WeightFormat> format_of(const at::Tensor& matrix) {
  if (!matrix.is_contiguous()) return std::nullopt;
  if (matrix.scalar_type() == at::kFloat) return WeightFormat::float32;
  if (matrix.scalar_type() == at::kBFloat16) return WeightFormat::bfloat16;
  if (!is_packed(matrix)) return std::nullopt;
  const auto found = std::ranges::find_if(
      kPacked, [&](WeightFormat f) { return kernels::block_bytes(f) == matrix.size(2); });
  return found == kPacked.end() ? std::nullopt : std::optional(*found);
}

kernels::WeightRows weight_rows(const at::Tensor& matrix) {
  const auto format = format_of(matrix);
  require<UnsupportedError>(format.has_value(), "linear",
                            "expected a matrix in one of {}, rows side by side; got {}",
                            fmt::join(kFormatNames, ", "), at::toString(matrix.scalar_type()));
  return {matrix.const_data_ptr(), *format};
}

int64_t matrix_inputs(const at::Tensor& matrix) {
  return is_packed(matrix) ? matrix.size(1) * kBlock : matrix.size(-1);
}

int64_t matrix_numel(const at::Tensor& matrix) {
  return is_packed(matrix) ? matrix.size(0) * matrix_inputs(matrix) : matrix.numel();
}

std::vector<int64_t> packed_shape(WeightFormat format, at::IntArrayRef shape) {
  require<ShapeError>(shape.size() == 2 && shape[1] % kBlock == 0, "weights",
                      "expected rows of whole blocks of {} inputs for {}; got {} inputs: take bf16 "
                      "or f32",
                      kBlock, kFormatNames[static_cast<size_t>(format)], shape.back());
  return {shape[0], shape[1] / kBlock, kernels::block_bytes(format)};
}

void pack(const at::Tensor& numbers_oi, WeightFormat format, at::Tensor& to) {
  // q8_0 divides by 127, q4_0 by 8, q4_1 by 15; its smallest number is a scale of its own.
  const double divisor = format == WeightFormat::q8_0   ? 127.0
                         : format == WeightFormat::q4_0 ? 8.0
                                                        : 1.0;
  const double largest = numbers_oi.abs().max().item<double>();
  require<NumericalError>(largest <= 65504.0 * divisor, "weights",
                          "expected weights within {} for {}; the largest is {}: take bf16 or f32",
                          65504.0 * divisor, kFormatNames[static_cast<size_t>(format)], largest);
  const int64_t inputs = numbers_oi.size(1), bytes = to.stride(0);
  auto* const rows = static_cast<std::byte*>(to.mutable_data_ptr());
  // A part of the matrix in float32 at a time.
  const int64_t some = std::max<int64_t>(1, kUnpackedWeights / inputs);
  for (int64_t first = 0; first < numbers_oi.size(0); first += some) {
    const int64_t count = std::min(some, numbers_oi.size(0) - first);
    const at::Tensor part = numbers_oi.narrow(0, first, count).to(at::kFloat).contiguous();
    const float* const x = part.const_data_ptr<float>();
    each_row(count, inputs, [&](int64_t r) {
      kernels::pack_row(format, {x + r * inputs, static_cast<size_t>(inputs)},
                        {rows + (first + r) * bytes, static_cast<size_t>(bytes)});
    });
  }
}

bool is_finite(const at::Tensor& matrix) {
  const at::NoGradGuard no_grad;
  if (!is_packed(matrix)) {
    // A sum is finite where every number is, unless it overflows; then the numbers are looked at.
    return std::isfinite(matrix.sum().item<double>()) || at::isfinite(matrix).all().item<bool>();
  }
  const int64_t scales = kernels::block_scales(weight_rows(matrix).format) * matrix.size(1);
  const at::Tensor halves = matrix.flatten(1).narrow(1, 0, 2 * scales).contiguous().view(at::kHalf);
  return at::isfinite(halves).all().item<bool>();
}

at::Tensor unpacked(const at::Tensor& matrix, at::ScalarType dtype) {
  if (!is_packed(matrix)) return matrix.to(dtype);
  const int64_t inputs = matrix_inputs(matrix);
  const at::Tensor plain = at::empty({matrix.size(0), inputs}, at::kFloat);
  backend_for(matrix).run(kernels::Unpacking{.w = weight_rows(matrix),
                                             .y = plain.mutable_data_ptr<float>(),
                                             .inputs = inputs,
                                             .outputs = matrix.size(0)});
  return plain.to(dtype);
}

at::Tensor as_read(const at::Tensor& x_ri, const at::Tensor& matrix, Activations activations) {
  if (activations != Activations::int8 || !is_packed(matrix)) return x_ri;
  const at::Tensor x = x_ri.contiguous(), y = at::empty_like(x);
  const int64_t inputs = x.size(-1);
  with_kernel_type(x.scalar_type(), "int8 activations", [&]<class T>(T) {
    backend_for(x).run(kernels::Int8Rounding<T>{.x = static_cast<const T*>(x.const_data_ptr()),
                                                .y = static_cast<T*>(y.mutable_data_ptr()),
                                                .rows = x.numel() / inputs,
                                                .inputs = inputs});
  });
  return y;
}

at::Tensor packed_product(const at::Tensor& x_ri, const std::vector<at::Tensor>& matrices,
                          Activations activations) {
  std::vector<int64_t> sizes = x_ri.sizes().vec();
  const at::Tensor x = x_ri.reshape({-1, sizes.back()});
  const int64_t some = std::max<int64_t>(16, kUnpackedWeights / sizes.back());
  sizes.back() = 0;
  for (const at::Tensor& w : matrices) sizes.back() += w.size(0);
  at::Tensor y = at::empty({x.size(0), sizes.back()}, x.options());
  int64_t column = 0;
  at::Tensor rounded;
  for (const at::Tensor& w : matrices) {
    if (is_packed(w) && !rounded.defined()) rounded = as_read(x, w, activations);
    const at::Tensor& read = is_packed(w) ? rounded : x;
    for (int64_t first = 0; first < w.size(0); first += some) {
      const int64_t count = std::min(some, w.size(0) - first);
      const at::Tensor plain = unpacked(w.narrow(0, first, count), x.scalar_type());
      y.narrow(1, column, count).copy_(linear_product(read, plain));
      column += count;
    }
  }
  return y.view(sizes);
}

}  // namespace fovea
