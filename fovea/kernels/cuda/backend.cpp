// The CUDA kernels as a backend, and the function that gives it to the program.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/backend.h"

#include "fovea/kernels/cuda/attention/attention.h"
#include "fovea/kernels/cuda/attention/focus.h"
#include "fovea/kernels/cuda/decode/decoder.h"
#include "fovea/kernels/cuda/decode/draws.h"
#include "fovea/kernels/cuda/machine.h"
#include "fovea/kernels/cuda/mixing/mixing.h"
#include "fovea/kernels/device_services.h"

namespace fovea::kernels::cuda {
namespace {

Kernels all_kernels() {
  Kernels all;
  const auto add = []<class Problem>(Kernel<Problem>& kernel, std::string_view (*isa)()) {
    kernel.run = [](const Problem& p) { cuda::run(p); };
    kernel.why_not = [](const Problem& p) { return cuda::why_not(p); };
    kernel.isa = isa;
  };
  add(static_cast<Kernel<AttentionForward<BFloat16>>&>(all), attention_isa);
  add(static_cast<Kernel<AttentionBackward<BFloat16>>&>(all), attention_isa);
  add(static_cast<Kernel<FocusForward<BFloat16>>&>(all), attention_isa);
  add(static_cast<Kernel<FocusBackward<BFloat16>>&>(all), attention_isa);
  add(static_cast<Kernel<MixingForward<BFloat16>>&>(all), mixing_isa);
  add(static_cast<Kernel<MixingBackward<BFloat16>>&>(all), mixing_isa);
  add(static_cast<Kernel<TokenDraws>&>(all), attention_isa);
  static_cast<Decoders<BFloat16>&>(all) = {make_decoder, why_not_decoder};
  return all;
}

class Cuda final : public Backend {
 public:
  Cuda() : Backend(all_kernels()) {}

  std::string_view name() const override { return "cuda"; }
  /// The kernels walk their own tiles; these are of the plans alone.
  TileSizes tile_sizes() const override { return {.queries = 128, .keys = 128, .tile = 64}; }
  bool prefers_decode(const AttentionSizes&) const override { return false; }
};

}  // namespace
}  // namespace fovea::kernels::cuda

extern "C" __attribute__((visibility("default"))) const fovea::kernels::Backend* fovea_make_backend(
    const fovea::kernels::DeviceServices& services, size_t kernels_size, std::string& why_not) {
  namespace cuda = fovea::kernels::cuda;
  if (kernels_size != sizeof(fovea::kernels::Kernels)) {
    why_not = "the library of CUDA kernels is of another build than the program";
    return nullptr;
  }
  if (cuda::attention_isa().empty()) {
    why_not = "the library of CUDA kernels has none for this GPU";
    return nullptr;
  }
  cuda::set_services(services);
  static const cuda::Cuda backend;
  return &backend;
}
