// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/convolution.h"

#include <ATen/ATen.h>

#include "fovea/attention/backend.h"
#include "fovea/attention/operation.h"

namespace fovea {
namespace {

// Index of the first row of each row's document: labels 0000 11111 give 0000 44444.
at::Tensor first_rows(const at::Tensor& labels_br) {
  const at::Tensor labels = labels_br.to(at::kLong).contiguous();
  at::Tensor first = at::empty(labels.sizes(), at::kInt);
  const int64_t* label = labels.const_data_ptr<int64_t>();
  auto* index = first.mutable_data_ptr<int32_t>();
  const int64_t rows = labels.size(1);
  for (int64_t n = 0; n < labels.numel(); ++n) {
    const auto row = static_cast<int32_t>(n % rows);
    index[n] = row > 0 && label[n] == label[n - 1] ? index[n - 1] : row;
  }
  return first;
}

template <class T>
kernels::Convolution<T> convolution(const at::Tensor& x, const at::Tensor& kernel, int64_t results,
                                    const at::Tensor& first) {
  return {.maps = x.size(0) * x.size(1),
          .heads = x.size(1),
          .rows = x.size(2),
          .results = results,
          .keys = x.size(3),
          .queries = kernel.size(1),
          .taps = kernel.size(2),
          .kernel = kernel.const_data_ptr<T>(),
          .first_row = first.numel() > 0 ? first.const_data_ptr<int32_t>() : nullptr,
          .sequences = first.numel() > 0 ? first.size(0) : 1};
}

// Inputs: the maps, the kernel and the first row of each row's document (empty: 0).
struct ConvolutionCall : Operation {
  int64_t results = 0;

  Tensors forward(const Tensors& inputs, Tensors& kept) const override {
    const at::Tensor x = inputs[0].contiguous(), kernel = inputs[1].contiguous();
    kept = {x, kernel, inputs[2]};
    const at::Tensor y = at::empty({x.size(0), x.size(1), results, x.size(3)}, x.options());
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "key-query convolution", [&] {
      backend_for(x).run(kernels::ConvolutionForward<scalar_t>{
          .shape = convolution<scalar_t>(x, kernel, results, inputs[2]),
          .x = x.const_data_ptr<scalar_t>(),
          .y = y.mutable_data_ptr<scalar_t>()});
    });
    return {y};
  }

  Tensors backward(const Tensors& kept, const Tensors& grads,
                   const std::vector<bool>& wanted) const override {
    Tensors of_inputs(3);
    if (!grads[0].defined()) return of_inputs;
    const at::Tensor &x = kept[0], &kernel = kept[1], dy = grads[0].contiguous();
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "key-query convolution", [&] {
      const auto c = convolution<scalar_t>(x, kernel, dy.size(2), kept[2]);
      if (wanted[0]) {
        of_inputs[0] = at::empty_like(x);
        backend_for(x).run(kernels::ConvolutionInputGradient<scalar_t>{
            .shape = c,
            .dy = dy.const_data_ptr<scalar_t>(),
            .dx = of_inputs[0].mutable_data_ptr<scalar_t>()});
      }
      if (wanted[1]) {
        at::Tensor parts = at::empty({x.size(0), x.size(1), c.queries, c.taps}, x.options());
        backend_for(x).run(kernels::ConvolutionKernelGradient<scalar_t>{
            .shape = c,
            .x = x.const_data_ptr<scalar_t>(),
            .dy = dy.const_data_ptr<scalar_t>(),
            .dkernel = parts.mutable_data_ptr<scalar_t>()});
        of_inputs[1] = parts.sum(0);
      }
    });
    return of_inputs;
  }
};

}  // namespace

bool convolution_kernels_take(const at::Tensor& x) {
  const kernels::Backend* const backend = backend_of(x.device());
  return backend != nullptr && !backend->why_not(kernels::ConvolutionForward<float>{}) &&
         (x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble);
}

at::Tensor convolution_by_kernels(const at::Tensor& x, const at::Tensor& kernel, int64_t results,
                                  const at::Tensor& documents) {
  auto call = c10::make_intrusive<ConvolutionCall>();
  call->results = results;
  const at::Tensor first =
      documents.defined() ? first_rows(documents) : at::empty({0}, x.options().dtype(at::kInt));
  return run_operation(std::move(call), {x, kernel, first})[0];
}

}  // namespace fovea
