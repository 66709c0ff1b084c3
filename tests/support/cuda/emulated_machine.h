// The machine of the emulated kernels: memory of the host, a compute capability that tests choose.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/backend.h"
#include "fovea/kernels/cuda/machine.h"

namespace fovea::testing {

/// What this_machine() answers.
inline kernels::cuda::Machine emulated_machine{.major = 9, .minor = 0, .shared_bytes = 227 * 1024};

/// While it lives, kernels run as on that machine.
class On {
 public:
  explicit On(const kernels::cuda::Machine& machine) : before_(emulated_machine) {
    emulated_machine = machine;
  }
  ~On() { emulated_machine = before_; }
  On(const On&) = delete;
  On& operator=(const On&) = delete;

 private:
  kernels::cuda::Machine before_;
};

inline constexpr kernels::cuda::Machine kHopper{.major = 9, .minor = 0, .shared_bytes = 227 * 1024};
inline constexpr kernels::cuda::Machine kAmpere{.major = 8, .minor = 0, .shared_bytes = 163 * 1024};

/// Pieces of device memory that are in use.
int64_t scratch_in_use();
/// Found when a piece was given back.
int64_t bytes_written_beyond_scratch();

/// The backend of the emulated kernels.
const kernels::Backend& emulated_backend();

}  // namespace fovea::testing
