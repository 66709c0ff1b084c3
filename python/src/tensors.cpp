// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "tensors.h"

#include <algorithm>
#include <array>
#include <span>

namespace fovea::python {
namespace {

constexpr int64_t kReadAtOnce = 16;  // bytes

struct Place {
  int32_t type = 0, index = 0;
};

Place place_of(const Tensor& x) {
  Place place;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(x.get(), &place.type));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(x.get(), &place.index));
  if (place.index < 0) place.index = 0;  // the CPU
  return place;
}

int32_t dtype_of(const Tensor& x) {
  int32_t dtype = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(x.get(), &dtype));
  return dtype;
}

// By the C function: an operator by name costs a microsecond each time.
Tensor new_tensor(std::span<const int64_t> sizes, std::span<const int64_t> strides, int32_t dtype,
                  Place place) {
  AtenTensorHandle made = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(),
                                                  strides.data(), dtype, place.type, place.index,
                                                  &made));
  return Tensor(made);
}

Tensor new_contiguous(const std::vector<int64_t>& sizes, int32_t dtype, Place place) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t axis = sizes.size(); axis-- > 1;)
    strides[axis - 1] = strides[axis] * std::max<int64_t>(sizes[axis], 1);
  return new_tensor(sizes, strides, dtype, place);
}

Tensor contiguous_copy(const Tensor& x, Place place) {
  std::vector<int64_t> sizes;
  for (int64_t axis = 0; axis < x.dim(); ++axis) sizes.push_back(x.size(axis));
  Tensor copy = new_contiguous(sizes, dtype_of(x), place);
  TORCH_ERROR_CODE_CHECK(aoti_torch_copy_(copy.get(), x.get(), 0));
  return copy;
}

bool has_aligned_rows(const Tensor& x) {
  const auto bytes = static_cast<int64_t>(x.element_size());
  if (reinterpret_cast<uintptr_t>(x.const_data_ptr()) % kReadAtOnce != 0) return false;
  for (int64_t axis = 0; axis < 3; ++axis) {
    if (x.stride(axis) * bytes % kReadAtOnce != 0) return false;
    if (x.stride(axis) == 0 && x.size(axis) > 1) return false;
  }
  return true;
}

}  // namespace

Tensor new_floats(const std::vector<int64_t>& sizes, const Tensor& like) {
  return new_contiguous(sizes, aoti_torch_dtype_float32(), place_of(like));
}

Tensor new_by_token(const Tensor& like, int64_t width) {
  const int64_t h = like.size(1), t = like.size(2);
  const std::array<int64_t, 4> sizes{like.size(0), h, t, width};
  const std::array<int64_t, 4> strides{t * h * width, width, h * width, 1};
  return new_tensor(sizes, strides, dtype_of(like), place_of(like));
}

Tensor new_places(int64_t rows, int64_t tokens) {
  return new_contiguous({rows, tokens}, aoti_torch_dtype_int64(),
                        {.type = aoti_torch_device_type_cpu()});
}

Tensor readable_rows(const Tensor& x) {
  if (x.is_cpu() || has_aligned_rows(x)) return x;
  return contiguous_copy(x, place_of(x));
}

Tensor on_host(const Tensor& x) {
  return x.is_cpu() ? x : contiguous_copy(x, {.type = aoti_torch_device_type_cpu()});
}

}  // namespace fovea::python
