// The GPU as the host side of the kernels sees it: what it can run, copies, errors.
//
// machine.cpp asks the CUDA runtime. Tests without a GPU link machine_emulated.cpp instead.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "fovea/kernels/cuda/stream.h"
#include "fovea/kernels/device_services.h"

namespace fovea::kernels::cuda {

struct Machine {
  int major = 0, minor = 0;  ///< compute capability
  int shared_bytes = 0;      ///< shared memory that a block may have
  /// Memory of a slab of scores (mixing/slab.cuh), of which a call has up to four. Larger ones are
  /// faster: 2,048 rows at once took 0.86 of the time of 1,024 (head mixes, T = 2,048, an H200).
  int64_t slab_bytes = int64_t{256} << 20;
};

/// The current device; major 0 where there is none.
Machine this_machine();

void copy_to_device(void* to, const void* from, int64_t bytes, Stream stream);
/// Returns when the bytes are there.
void copy_to_host(void* to, const void* from, int64_t bytes, Stream stream);
/// Between places of the device that do not overlap.
void copy_on_device(void* to, const void* from, int64_t bytes, Stream stream);
void fill_with_zeros(void* to, int64_t bytes, Stream stream);

/// Throws where a launch or a call of the runtime returned an error: MemoryError, or Error with
/// CUDA's name of it.
void check(int error, const char* where);

/// The program's; set once, when it asks for the backend.
const DeviceServices& services();
void set_services(const DeviceServices& services);

/// Memory of the device while it lives, in pieces of 256-byte alignment.
class Scratch {
 public:
  explicit Scratch(int64_t bytes)
      : begin_(static_cast<char*>(services().allocate(static_cast<size_t>(bytes)))) {}
  ~Scratch() { services().release(begin_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  /// Room for `count` elements and its alignment.
  template <class T>
  static int64_t room(int64_t count) {
    return (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
  }
  template <class T>
  T* take(int64_t count) {
    char* const piece = begin_ + used_;
    used_ += room<T>(count);
    return reinterpret_cast<T*>(piece);
  }

 private:
  char* begin_;
  int64_t used_ = 0;
};

}  // namespace fovea::kernels::cuda
