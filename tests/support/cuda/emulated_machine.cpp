// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cuda/emulated_machine.h"

#include <cstring>
#include <map>

#include "fovea/base/error.h"

extern "C" const fovea::kernels::Backend* fovea_make_backend(
    const fovea::kernels::DeviceServices& services, size_t kernels_size, std::string& why_not);

namespace fovea {
namespace {

struct Piece {
  std::vector<std::byte> memory;
  const std::byte* end;  ///< of what was asked for
};

std::map<void*, Piece>& pieces() {
  static std::map<void*, Piece> all;
  return all;
}

int64_t written_beyond = 0;

// Numbers that nobody wrote are no numbers.
void* allocate(size_t bytes) {
  std::vector<std::byte> memory(bytes + 256, std::byte{0xff});
  const auto begin = reinterpret_cast<uintptr_t>(memory.data());
  auto* const piece = memory.data() + ((begin + 255) / 256 * 256 - begin);
  pieces().emplace(piece, Piece{std::move(memory), piece + bytes});
  return piece;
}

void release(void* piece) {
  const auto at = pieces().find(piece);
  const auto& [memory, end] = at->second;
  for (const std::byte* x = end; x != memory.data() + memory.size(); ++x)
    written_beyond += *x != std::byte{0xff};
  pieces().erase(at);
}

kernels::DeviceServices lent;

}  // namespace

namespace kernels::cuda {

Machine this_machine() { return testing::emulated_machine; }
void copy_to_device(void* to, const void* from, int64_t bytes, Stream) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}
void copy_to_host(void* to, const void* from, int64_t bytes, Stream) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}
void copy_on_device(void* to, const void* from, int64_t bytes, Stream) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}
void fill_with_zeros(void* to, int64_t bytes, Stream) {
  std::memset(to, 0, static_cast<size_t>(bytes));
}
void check(int error, const char* where) {
  require<Error>(error == 0, "cuda", "expected {} to run; got {}", where, error);
}
const DeviceServices& services() { return lent; }
void set_services(const DeviceServices& services) { lent = services; }

}  // namespace kernels::cuda

namespace testing {

int64_t scratch_in_use() { return std::ssize(pieces()); }
int64_t bytes_written_beyond_scratch() { return written_beyond; }

const kernels::Backend& emulated_backend() {
  static const kernels::Backend* const backend = [] {
    std::string why;
    const kernels::DeviceServices services{
        .allocate = allocate, .release = release, .stream = []() -> void* { return nullptr; }};
    const kernels::Backend* const made =
        fovea_make_backend(services, sizeof(kernels::Kernels), why);
    require<Error>(made != nullptr, "emulation", "expected a backend; got {}", why);
    return made;
  }();
  return *backend;
}

}  // namespace testing
}  // namespace fovea
