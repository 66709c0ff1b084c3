// OperatorProfile: where the time and the FLOPs of a training step go, by what operations are for.
//
// The model's functions say what they are by an OperatorScope, which costs one comparison while
// nobody profiles. A profile also hears torch's operations and backward nodes
// (ATen/record_function.h). A backward node belongs to the scope whose forward pass made it, found
// by its sequence number. An operation belongs to the outermost scope or operation around it that
// has a kind; but matrix products inside a loss are products.
//
// FLOPs are those of the formulas, whatever a kernel computes again. A product counts 2 m n k by
// its shapes. A scope says its own count forward; backward it counts `backward` times that.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string_view>

namespace fovea {

/// - `product`: products with weight matrices, casts of the weights included
/// - `attention`: from queries, keys and values to the heads' outputs
/// - `norm`: of the residual stream, the sums that they are fused with included
/// - `elementwise`: rotations and norms of heads, activations, sums, copies
/// - `loss`: softmax and cross-entropy over the vocabulary
/// - `optimizer`: gradient norm, clipping, update
/// - `other`: embeddings, data, sums over processes, torch's own work
enum class OperatorKind { product, attention, norm, elementwise, loss, optimizer, other };
inline constexpr size_t kOperatorKinds = 7;
/// For people: "matrix products", ...
std::span<const std::string_view> enum_names(OperatorKind);

/// The cost of one kind in one pass.
struct OperatorCost {
  double seconds = 0, flops = 0;
};
struct OperatorCosts {
  std::array<OperatorCost, kOperatorKinds> forward = {}, backward = {};

  const OperatorCost& of(OperatorKind kind, bool in_backward) const {
    return (in_backward ? backward : forward)[static_cast<size_t>(kind)];
  }
  /// The sum over all kinds and both passes.
  double seconds() const;
};

/// Listens from its making to its end, in all threads; one at a time, made and ended between steps.
/// On a GPU the host waits for the device around every operation, so that its time is its own.
class OperatorProfile {
 public:
  explicit OperatorProfile(at::Device device);
  ~OperatorProfile();
  OperatorProfile(const OperatorProfile&) = delete;
  OperatorProfile& operator=(const OperatorProfile&) = delete;

  /// The costs since the last call; operations must not be under way.
  OperatorCosts take();

  /// The one that listens, or null.
  static OperatorProfile* active();
  void begin_scope(OperatorKind kind, double flops, double backward);
  void end_scope(bool waits);

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

/// While it lives, its thread computes one operation of this kind.
class OperatorScope {
 public:
  explicit OperatorScope(OperatorKind kind) : OperatorScope(kind, [] { return 0.0; }) {}
  /// `flops()` of the forward pass is asked only where somebody profiles.
  template <class Flops>
  OperatorScope(OperatorKind kind, const Flops& flops, double backward = 2.0)
      : profile_(OperatorProfile::active()) {
    if (profile_ != nullptr) [[unlikely]]
      profile_->begin_scope(kind, flops(), backward);
  }
  ~OperatorScope() noexcept(false) {
    // A device that has failed is not waited for.
    if (profile_ != nullptr) [[unlikely]]
      profile_->end_scope(std::uncaught_exceptions() == exceptions_);
  }
  OperatorScope(const OperatorScope&) = delete;
  OperatorScope& operator=(const OperatorScope&) = delete;

 private:
  OperatorProfile* profile_;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace fovea
