// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "device.h"

#include <dlfcn.h>

#include <map>
#include <mutex>

#include "fovea/kernels/device_library.h"
#include "problem.h"

namespace fovea::python {
namespace {

int32_t current_device() {
  int32_t index = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_device_index(&index));
  return index;
}

// Tensors that are the scratch memory of kernels, by their addresses.
class Scratch {
 public:
  void* allocate(size_t bytes) {
    const int64_t size = static_cast<int64_t>(bytes), stride = 1;
    AtenTensorHandle made = nullptr;
    require<MemoryError>(
        aoti_torch_empty_strided(1, &size, &stride, aoti_torch_dtype_uint8(),
                                 aoti_torch_device_type_cuda(), current_device(), &made) == 0,
        "fovea.attention", "expected {} bytes of GPU memory: use smaller batches", bytes);
    const Tensor tensor(made);
    void* const memory = tensor.mutable_data_ptr();
    const std::lock_guard lock(mutex_);
    lent_.emplace(memory, tensor);
    return memory;
  }
  void release(void* memory) {
    const std::lock_guard lock(mutex_);
    lent_.erase(memory);
  }

 private:
  std::mutex mutex_;
  std::map<void*, Tensor> lent_;
};

Scratch& scratch() {
  static auto* const all = new Scratch;  // outlives torch's allocator
  return *all;
}

// The function is in torch's CUDA half alone, which a torch for the CPU lacks: hence by name.
void* stream() {
  using Current = AOTITorchError (*)(int32_t, void**);
  static const auto current = [] {
    void* const half = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    return half == nullptr
               ? nullptr
               : reinterpret_cast<Current>(dlsym(half, "aoti_torch_get_current_cuda_stream"));
  }();
  require<UnsupportedError>(current != nullptr, "fovea.attention",
                            "expected torch with CUDA; libtorch_cuda.so has no current stream");
  void* found = nullptr;
  TORCH_ERROR_CODE_CHECK(current(current_device(), &found));
  return found;
}

const std::string& why_no_cuda_kernels() {
  static const std::string why = kernels::load_cuda_kernels(
      {.allocate = [](size_t bytes) { return scratch().allocate(bytes); },
       .release = [](void* memory) { scratch().release(memory); },
       .stream = stream});
  return why;
}

const kernels::Backend& cuda() {
  const std::string& why = why_no_cuda_kernels();
  require<UnsupportedError>(why.empty(), "fovea.attention", "{}", why);
  return *kernels::backend_of(kernels::DeviceKind::cuda);
}

// Two documents of half the keys each; the queries are the last keys.
Tensor places_of_question(bool positions, int64_t tokens, int64_t keys, bool documents) {
  const Tensor x = new_places(1, tokens);
  auto* const to = static_cast<int64_t*>(x.mutable_data_ptr());
  for (int64_t n = 0; n < tokens; ++n) {
    const int64_t place = keys - tokens + n, start = place * 2 >= keys ? keys / 2 : 0;
    to[n] = positions ? place - (documents ? start : 0) : (start > 0 ? 1 : 0);
  }
  return x;
}

}  // namespace

const kernels::Backend& backend_for(const Tensor& q) {
  return q.is_cpu() ? kernels::cpu() : cuda();
}

std::optional<std::string> why_not_cuda(const Call& call, const Pairs& pairs,
                                        const kernels::Backend& backend) {
  if (call.q.scalar_type() != ScalarType::BFloat16) return "CUDA kernels compute in bfloat16";
  if (call.stats) return "CUDA kernels have no telemetry";
  if (call[kBlockPairs]) return "CUDA kernels have no pairs of blocks";
  if (call[kMembers] && call.joins_pairs()) return "CUDA kernels that mix have no hard Focus";
  if (call[kMembers] && call.has_places())
    return "CUDA kernels of hard Focus take one document a row";
  std::optional<std::string> why;
  with_forward<BFloat16>(family_of(call, pairs), [&](auto problem) {
    set_inputs<BFloat16>(problem, call, pairs);
    why = backend.why_not(problem);
  });
  return why;
}

std::string answer(Call call) {
  if (const std::string& why = why_no_cuda_kernels(); !why.empty()) return why;
  const int64_t queries = call.q.size(2), keys = call.k.size(2);
  const bool documents = call[kKeyDocuments].has_value();
  for (int n = kQueryPositions; n <= kKeyDocuments; ++n) {
    const bool of_queries = n == kQueryPositions || n == kQueryDocuments;
    if (call.slots[n])
      call.slots[n] =
          places_of_question(n <= kKeyPositions, of_queries ? queries : keys, keys, documents);
  }
  return why_not_cuda(call, Pairs(call, cuda(), true), cuda()).value_or("");
}

}  // namespace fovea::python
