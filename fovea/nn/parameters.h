// The registry of a model's parameters.
//
// Optimizer groups, freezing, checkpoint files, counts and plans are derived from it. Masters are
// float32 leaves; the model casts them to its compute dtype where it uses them.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace fovea {

/// How a parameter starts. Truncated normals are cut at 3 standard deviations (spec 3.5).
struct Init {
  enum class Kind { zeros, ones, constant, truncated_normal, normal, uniform, given };
  Kind kind = Kind::zeros;
  double value = 0.0;     ///< constant, standard deviation of the normal, or bound of +-uniform
  double scale = 1.0;     ///< multiplies the drawn values (F-5: the query init of the fair control)
  at::Tensor start = {};  ///< the values of `given`
};

struct Parameter {
  /// A part of the architecture, or put on top by a mechanism or adapter.
  enum class Origin { base, added };
  /// Hugging Face's name where one exists: "model.layers.0.self_attn.q_proj.weight".
  std::string name;
  Origin origin = Origin::base;
  /// "focus", "lora", ...: what put it on top; "" for the architecture. Static storage.
  std::string_view mechanism = {};
  bool decay = true;  ///< takes part in weight decay
  double learning_rate_scale = 1.0;
  bool trainable = true;
  bool state = false;  ///< changed by Transformer::observe() alone: never trained, not counted
  Init init;
  /// Number format of the file that it was read from; it is written back so.
  at::ScalarType stored = at::kFloat;
  at::Tensor value = {};  ///< float32 leaf, requires_grad = trainable
};

/// Where the first numbers of a model come from.
enum class FirstNumbers {
  drawn,   ///< from the seed, as the config says
  awaited  ///< from the caller, a file for example; arbitrary until then
};

class ParameterRegistry {
 public:
  explicit ParameterRegistry(uint64_t seed = 0, at::Device device = at::kCPU,
                             FirstNumbers first = FirstNumbers::drawn)
      : seed_(seed), device_(device), first_(first) {}

  /// Registers a parameter and draws its numbers, unless they are awaited; on the meta device it
  /// has a shape alone. The reference stays valid.
  Parameter& add(Parameter parameter, at::IntArrayRef shape);
  /// Draws the first numbers of a parameter; they depend on (seed, name) only.
  void draw(Parameter& parameter) const;
  uint64_t seed() const { return seed_; }
  const Parameter* find(std::string_view name) const;
  Parameter* find(std::string_view name);
  /// In order of registration.
  std::deque<Parameter>& all() { return parameters_; }
  const std::deque<Parameter>& all() const { return parameters_; }
  /// Lets the optimizer change exactly the parameters that `chosen` accepts (state never).
  void train_only(const std::function<bool(const Parameter&)>& chosen);
  /// Number of elements without state; `only_trainable` leaves out frozen ones.
  int64_t count(bool only_trainable = false) const;
  std::vector<std::string> names() const;

 private:
  uint64_t seed_;
  at::Device device_;
  FirstNumbers first_;
  std::deque<Parameter> parameters_;
};

/// Fills `tensor` (float32) by `init`: the same numbers for the same (seed, name), on any device
/// and by any number of threads.
void initialise(at::Tensor& tensor, const Init& init, uint64_t seed, std::string_view name);

}  // namespace fovea
