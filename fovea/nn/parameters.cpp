// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/parameters.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/base/rng.h"
#include "fovea/nn/matrix.h"

namespace fovea {

namespace {

/// Numbers of one parameter by all threads. Each is a function of its counter, so that neither the
/// threads nor the blocks change one.
struct Draws {
  uint64_t key = 0;
  std::span<float> to;
  const Init& init;

  static constexpr int64_t kBlock = 1 << 14;  // numbers: a fraction of a millisecond

  float scaled(double x) const { return static_cast<float>(x * init.value * init.scale); }

  /// `draw` takes `counters` values of the generator for every number.
  template <class Draw>
  void each(const Draw& draw, uint64_t counters) const {
    at::parallel_for(0, std::ssize(to), kBlock, [&](int64_t begin, int64_t end) {
      Rng rng(key, counters * static_cast<uint64_t>(begin));
      for (int64_t i = begin; i < end; ++i) to[static_cast<size_t>(i)] = scaled(draw(rng));
    });
  }

  /// The first numbers within 3 of the sequence of normals.
  void truncated_normals() const {
    uint64_t candidate = 0;
    for (size_t drawn = 0; drawn < to.size();) {
      const size_t missing = to.size() - drawn;
      drawn += accepted(to.subspan(drawn), 2 * candidate);
      candidate += missing;
    }
  }

 private:
  /// Draws as many candidates as `part` has room for and packs those that are kept; their number.
  size_t accepted(std::span<float> part, uint64_t counter) const {
    constexpr double kCut = 3.0;
    const int64_t count = std::ssize(part), blocks = (count + kBlock - 1) / kBlock;
    std::vector<int64_t> kept(static_cast<size_t>(blocks));
    at::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
      for (int64_t b = first; b < last; ++b) {
        const int64_t begin = b * kBlock, end = std::min(count, begin + kBlock);
        Rng rng(key, counter + 2 * static_cast<uint64_t>(begin));
        float* next = part.data() + begin;
        for (int64_t i = begin; i < end; ++i)
          if (const double z = rng.normal(); std::abs(z) <= kCut) *next++ = scaled(z);
        kept[static_cast<size_t>(b)] = next - (part.data() + begin);
      }
    });
    float* packed = part.data();
    for (int64_t b = 0; b < blocks; ++b) {
      const float* const from = part.data() + b * kBlock;
      packed = std::copy(from, from + kept[static_cast<size_t>(b)], packed);
    }
    return static_cast<size_t>(packed - part.data());
  }
};

}  // namespace

Parameter& ParameterRegistry::add(Parameter parameter, at::IntArrayRef shape) {
  require<ConfigError>(find(parameter.name) == nullptr, "parameters",
                       "names are unique; '{}' came twice", parameter.name);
  parameter.value = at::empty(shape, at::TensorOptions(at::kFloat).device(device_));
  if (first_ == FirstNumbers::drawn && !device_.is_meta()) draw(parameter);
  parameter.trainable = parameter.trainable && !parameter.state;
  parameter.value.set_requires_grad(parameter.trainable);
  return parameters_.emplace_back(std::move(parameter));
}

void ParameterRegistry::draw(Parameter& parameter) const {
  initialise(parameter.value, parameter.init, seed_, parameter.name);
}

const Parameter* ParameterRegistry::find(std::string_view name) const {
  for (const Parameter& p : parameters_) {
    if (p.name == name) return &p;
  }
  return nullptr;
}

Parameter* ParameterRegistry::find(std::string_view name) {
  return const_cast<Parameter*>(std::as_const(*this).find(name));
}

void ParameterRegistry::train_only(const std::function<bool(const Parameter&)>& chosen) {
  for (Parameter& p : parameters_) {
    p.trainable = !p.state && chosen(p);
    p.value.set_requires_grad(p.trainable);
  }
}

int64_t ParameterRegistry::count(bool only_trainable) const {
  int64_t total = 0;
  for (const Parameter& p : parameters_) {
    if (!p.state && (!only_trainable || p.trainable)) total += matrix_numel(p.value);
  }
  return total;
}

std::vector<std::string> ParameterRegistry::names() const {
  std::vector<std::string> names;
  for (const Parameter& p : parameters_) names.push_back(p.name);
  return names;
}

void initialise(at::Tensor& tensor, const Init& init, uint64_t seed, std::string_view name) {
  const at::NoGradGuard no_grad;
  switch (init.kind) {
    case Init::Kind::zeros:
      tensor.zero_();
      return;
    case Init::Kind::ones:
      tensor.fill_(init.scale);
      return;
    case Init::Kind::constant:
      tensor.fill_(init.value * init.scale);
      return;
    case Init::Kind::given:
      tensor.copy_(init.start);
      return;
    case Init::Kind::uniform:
    case Init::Kind::normal:
    case Init::Kind::truncated_normal:
      break;
  }
  // Drawn on the host: logarithm and cosine of a device may round otherwise.
  at::Tensor numbers = tensor.is_cpu() ? tensor : at::empty(tensor.sizes(), at::kFloat);
  const Draws draws{.key = mix_seed(seed, fingerprint(name)),
                    .to = {numbers.mutable_data_ptr<float>(), static_cast<size_t>(numbers.numel())},
                    .init = init};
  if (init.kind == Init::Kind::truncated_normal) {
    draws.truncated_normals();
  } else if (init.kind == Init::Kind::normal) {
    draws.each([](Rng& rng) { return rng.normal(); }, 2);
  } else {
    draws.each([](Rng& rng) { return 2.0 * rng.uniform() - 1.0; }, 1);
  }
  if (!tensor.is_cpu()) tensor.copy_(numbers);
}

}  // namespace fovea
