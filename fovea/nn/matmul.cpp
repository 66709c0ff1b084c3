// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/matmul.h"

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <optional>
#include <vector>

#include "fovea/attention/backend.h"
#include "fovea/base/error.h"
#include "fovea/base/nearest_name.h"
#include "fovea/kernels/common/pair_products.h"
#include "fovea/nn/matrix.h"

namespace fovea {
namespace {

constexpr std::array<std::string_view, 2> kLibraryNames{"torch", "onednn"};

/// Products below this many multiplications take longer to dispatch than to compute.
constexpr int64_t kSmallest = 1 << 18;

// mkldnn::_linear_pointwise(X, W, B?, attr, scalars, algorithm?) -> Y
using Product = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                           c10::string_view, c10::List<std::optional<at::Scalar>>,
                           std::optional<c10::string_view>);

const std::optional<c10::TypedOperatorHandle<Product>>& onednn() {
  static const auto handle = []() -> std::optional<c10::TypedOperatorHandle<Product>> {
    const auto found = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
    if (!found) return std::nullopt;
    return found->typed<Product>();
  }();
  return handle;
}

LinearLibrary choose() {
  const char* forced = std::getenv("FOVEA_LINEAR");
  if (forced == nullptr || *forced == '\0') {
    const bool gains = found_isa() >= Isa::avx2 && !made_by_intel() && onednn().has_value();
    return gains ? LinearLibrary::onednn : LinearLibrary::torch;
  }
  for (size_t i = 0; i < kLibraryNames.size(); ++i) {
    if (kLibraryNames[i] != forced) continue;
    require<ConfigError>(i == 0 || onednn().has_value(), "FOVEA_LINEAR",
                         "this torch carries no oneDNN; got '{}'; unset FOVEA_LINEAR", forced);
    return static_cast<LinearLibrary>(i);
  }
  const std::vector<std::string> names(kLibraryNames.begin(), kLibraryNames.end());
  fail<ConfigError>("FOVEA_LINEAR", "expected one of {}; got '{}'{}",
                    fmt::join(kLibraryNames, ", "), forced, did_you_mean(forced, names));
}

int64_t rows_of(const at::Tensor& x_ri) { return x_ri.numel() / x_ri.size(-1); }

// Where there are instructions for bfloat16, few rows are faster by them: the casts of the weights
// cost more than the product.
constexpr int64_t kFewestWidened = 64;

bool is_widened(const at::Tensor& x, Bfloat16Product how) {
  return how == Bfloat16Product::widened && x.is_cpu() && x.scalar_type() == at::kBFloat16;
}

// Calls work(begin, count) for stretches of rows whose copies in float32, `columns` each, take at
// most 64 MiB.
template <class Work>
void for_some_rows(int64_t rows, int64_t columns, const Work& work) {
  constexpr int64_t kMostFloats = 16 << 20;
  const int64_t most = std::max<int64_t>(kMostFloats / std::max<int64_t>(columns, 1), 1);
  for (int64_t begin = 0; begin < rows; begin += most) work(begin, std::min(most, rows - begin));
}

}  // namespace

std::span<const std::string_view> enum_names(LinearLibrary) { return kLibraryNames; }

std::span<const std::string_view> enum_names(Bfloat16Product) {
  static constexpr std::array<std::string_view, 2> names{"native", "widened"};
  return names;
}

Bfloat16Product bfloat16_product() {
#if defined(__x86_64__)
  static const bool fast = has_fast_bfloat16();
#else
  static const bool fast = true;
#endif
  return fast ? Bfloat16Product::native : Bfloat16Product::widened;
}

LinearLibrary linear_library() {
  static const LinearLibrary library = choose();
  return library;
}

at::Tensor linear_product(const at::Tensor& x_ri, const at::Tensor& w_oi, LinearLibrary library) {
  const bool other = library == LinearLibrary::onednn && x_ri.is_cpu() &&
                     x_ri.scalar_type() == at::kFloat && x_ri.numel() * w_oi.size(0) >= kSmallest &&
                     onednn().has_value();
  if (!other) return at::linear(x_ri, w_oi);
  return onednn()->call(x_ri, w_oi, std::nullopt, "none", c10::List<std::optional<at::Scalar>>(),
                        "");
}

at::Tensor linear_product(const at::Tensor& x_ri, const at::Tensor& w_oi) {
  return is_widened(x_ri, bfloat16_product()) ? widened_product(x_ri, w_oi)
                                              : linear_product(x_ri, w_oi, linear_library());
}

at::Tensor reading_product(const at::Tensor& x_ri, const at::Tensor& w_oi) {
  const bool few = found_isa() >= Isa::avx512_bf16 && rows_of(x_ri) < kFewestWidened;
  return few ? linear_product(x_ri, w_oi, linear_library()) : linear_product(x_ri, w_oi);
}

at::Tensor widened_product(const at::Tensor& x_ri, const at::Tensor& w_oi) {
  std::vector<int64_t> sizes = x_ri.sizes().vec();
  const at::Tensor x = x_ri.reshape({-1, sizes.back()}), w = w_oi.to(at::kFloat);
  sizes.back() = w.size(0);
  const at::Tensor y = at::empty({x.size(0), w.size(0)}, x.options());
  for_some_rows(x.size(0), x.size(1) + w.size(0), [&](int64_t begin, int64_t count) {
    const at::Tensor some = x.narrow(0, begin, count).to(at::kFloat);
    y.narrow(0, begin, count).copy_(linear_product(some, w, linear_library()));
  });
  return y.view(sizes);
}

at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& x, Bfloat16Product how) {
  if (!is_widened(x, how)) return at::mm(dy.t(), x);
  at::Tensor sum = at::zeros({dy.size(1), x.size(1)}, x.options().dtype(at::kFloat));
  for_some_rows(x.size(0), dy.size(1) + x.size(1), [&](int64_t begin, int64_t count) {
    const auto some = [&](const at::Tensor& of) {
      return of.narrow(0, begin, count).to(at::kFloat);
    };
    sum.addmm_(some(dy).t(), some(x));
  });
  return sum;
}

// From more rows on, the matrix product of the linear library is as fast, and rounds like itself.
constexpr int64_t kFewRows = 4;
// The same for packed weights, which that product needs unpacked first (fovea/nn/matrix.h).
constexpr int64_t kFewPackedRows = 64;

// Rows below which our products are faster.
int64_t most_rows(const std::vector<at::Tensor>& weights, kernels::Activations activations) {
  if (!std::ranges::all_of(weights, is_packed)) return kFewRows;
  // Bytes are multiplied faster than floats, however many rows there are.
  const bool bytes = activations == kernels::Activations::int8 && chosen_isa() >= Isa::avx2;
  return bytes ? std::numeric_limits<int64_t>::max() : kFewPackedRows;
}

bool is_few_rows(const at::Tensor& x_ri, const std::vector<at::Tensor>& weights,
                 kernels::Activations activations) {
  const bool known = x_ri.scalar_type() == at::kFloat || x_ri.scalar_type() == at::kBFloat16;
  return x_ri.is_cpu() && known && x_ri.numel() > 0 &&
         rows_of(x_ri) <= most_rows(weights, activations) &&
         std::ranges::all_of(weights, [](const at::Tensor& w) { return format_of(w).has_value(); });
}

at::Tensor few_rows_product(const at::Tensor& x_ri, const std::vector<at::Tensor>& weights,
                            at::ScalarType result, kernels::Activations activations) {
  using kernels::Activations;
  // Prompts are read as they are where single tokens are rounded to 16 bits.
  if (rows_of(x_ri) > kFewRows && activations == Activations::int16)
    activations = Activations::exact;
  const at::Tensor x = x_ri.to(at::kFloat).contiguous();
  std::vector<int64_t> sizes = x.sizes().vec();
  const int64_t inputs = sizes.back(), rows = x.numel() / inputs;
  sizes.back() = 0;
  for (const at::Tensor& w : weights) sizes.back() += w.size(0);
  const at::Tensor y = at::empty(sizes, x.options());
  std::vector<kernels::MatVec> products;
  int64_t column = 0;
  for (const at::Tensor& w : weights) {
    products.push_back({.x = x.const_data_ptr<float>(),
                        .x_stride = inputs,
                        .w = weight_rows(w),
                        .y = y.mutable_data_ptr<float>() + column,
                        .y_stride = sizes.back(),
                        .rows = rows,
                        .inputs = inputs,
                        .outputs = w.size(0),
                        .activations = activations});
    column += w.size(0);
  }
  backend_for(x).run(kernels::MatVecs{products});
  return y.to(result);
}

}  // namespace fovea
