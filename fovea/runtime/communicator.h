// Communicator: sums over the processes ("ranks") that train one model together.
//
// The unit of the mathematics is the micro-batch of all ranks, of which each rank reads some rows.
// Every number that depends on the rows of others goes through here. Alone, the default, all of it
// is the identity: no copy is made and no bit changes.
//
// Every call is collective: all ranks make the same calls in the same order. Each rank receives the
// same bits, so decisions taken from them agree. A call throws IoError where a rank has gone.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace fovea {

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int64_t rank() const = 0;  ///< 0 ... size() - 1
  virtual int64_t size() const = 0;

  /// Each value becomes its sum over the ranks.
  virtual void sum(std::span<double> values) = 0;
  /// Each value becomes the largest of all ranks.
  virtual void max(std::span<double> values) = 0;
  /// Each tensor becomes its sum over the ranks, in place. Shapes, dtypes and order are the same on
  /// every rank; an implementation may send them in buckets.
  virtual void sum(std::span<const at::Tensor> tensors) = 0;
  /// Each tensor becomes that of rank `from`, in place.
  virtual void broadcast(std::span<const at::Tensor> tensors, int64_t from) = 0;
  /// Returns when every rank has come.
  virtual void barrier() = 0;

  /// Whether this rank writes files and speaks to people.
  bool is_first() const { return rank() == 0; }
  double sum(double value);
  double max(double value);
  /// Whether it holds on some rank.
  bool any(bool holds);
  /// The sum of a tensor that stays as it is.
  at::Tensor sum(const at::Tensor& tensor);
  /// [size, ...]: the tensors of all ranks, which have one shape.
  at::Tensor gather(const at::Tensor& tensor);
  /// Rows [n, ...] of all ranks, one rank's behind the other; n may differ.
  at::Tensor gather_rows(const at::Tensor& rows);
};

/// The one rank of a process on its own.
Communicator& alone();

}  // namespace fovea
