// Backend: the kernels of one kind of device, as an object.
//
// A kernel runs problems: the argument structs of kernels/common/, whose pointers are memory of the
// device. Code above kernels/ asks the backend of its tensors and names no backend's files:
//
//   if (const auto why = backend.why_not(problem)) ...   sizes and settings are enough to ask
//   backend.run(problem);
//
// A backend need not have every kernel. Another one is a library of its own that calls
// register_backend() when it is loaded.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "fovea/kernels/common/contract.h"
#include "fovea/kernels/common/convolution.h"
#include "fovea/kernels/common/decoder.h"
#include "fovea/kernels/common/elementwise.h"
#include "fovea/kernels/common/few_keys.h"
#include "fovea/kernels/common/focus.h"
#include "fovea/kernels/common/matvec.h"
#include "fovea/kernels/common/mixing.h"
#include "fovea/kernels/common/performer.h"
#include "fovea/kernels/common/sampling.h"
#include "fovea/kernels/common/selector.h"
#include "fovea/kernels/common/tile_sizes.h"
#include "fovea/kernels/common/token_draws.h"

namespace fovea::kernels {

/// The functions of a backend for one kind of problem; null where it has none.
template <class Problem>
struct Kernel {
  /// ShapeError for impossible sizes, UnsupportedError where `why_not` has a reason.
  void (*run)(const Problem&) = nullptr;
  /// Reason against a problem by its sizes and settings; null: there never is one.
  std::optional<std::string> (*why_not)(const Problem&) = nullptr;
  /// The name of its instruction set or architecture.
  std::string_view (*isa)() = nullptr;
};

/// Makes the decoders of a backend.
template <class T>
struct Decoders {
  std::unique_ptr<Decoder<T>> (*make)(DecoderModel) = nullptr;
  /// Reason against a model; null: there never is one.
  std::optional<std::string> (*why_not)(const DecoderModel&) = nullptr;
};

template <class... Problems>
struct KernelsOf : Kernel<Problems>... {
  template <class F>
  void each(const F& f) {
    (f(static_cast<Kernel<Problems>&>(*this)), ...);
  }
};

/// Problems on numbers that are stored as T.
template <class T>
using KernelsFor = KernelsOf<AttentionForward<T>, AttentionBackward<T>, AttentionDecode<T>,
                             GroupedForward<T>, GroupedBackward<T>, FewKeys<T>, FewKeysGradient<T>,
                             FewQueriesGradient<T>, MixingForward<T>, MixingBackward<T>,
                             MixingDecode<T>, ComponentChoice<T>, SampledDecode<T>, SampledRows<T>,
                             RmsNormForward<T>, RmsNormBackward<T>, SwigluForward<T>,
                             SwigluBackward<T>, HeadRotation<T>, CrossEntropy<T>, Int8Rounding<T>>;
/// Problems of other devices alone: the CPU solves them as problems of other kinds.
template <class T>
using DeviceKernels = KernelsOf<FocusForward<T>, FocusBackward<T>>;
using OtherDeviceKernels = KernelsOf<TokenDraws>;
template <class T>
using ConvolutionKernels =
    KernelsOf<ConvolutionForward<T>, ConvolutionInputGradient<T>, ConvolutionKernelGradient<T>>;
using OtherKernels = KernelsOf<PerformerForward, PerformerBackward, LogitChoice, KeysOfLast,
                               RowHashes, CollidingKeys, CentredHashes, MatVecs, Unpacking>;
struct Kernels : KernelsFor<float>,
                 KernelsFor<BFloat16>,
                 ConvolutionKernels<float>,
                 ConvolutionKernels<double>,
                 OtherKernels,
                 DeviceKernels<float>,
                 DeviceKernels<BFloat16>,
                 OtherDeviceKernels,
                 Decoders<float>,
                 Decoders<BFloat16> {
  /// f(Kernel<Problem>&) for every kind of problem that the CPU has kernels for.
  template <class F>
  void each(const F& f) {
    KernelsFor<float>::each(f);
    KernelsFor<BFloat16>::each(f);
    ConvolutionKernels<float>::each(f);
    ConvolutionKernels<double>::each(f);
    OtherKernels::each(f);
  }
};

/// Immutable once it is made; thread-safe.
class Backend {
 public:
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  virtual std::string_view name() const = 0;
  /// Tiles of the plans (visits.h, grouped_plan.h) that its kernels take.
  virtual TileSizes tile_sizes() const = 0;
  /// Whether AttentionDecode is faster than AttentionForward for these sizes.
  virtual bool prefers_decode(const AttentionSizes& sizes) const = 0;

  /// Reason why no kernel takes a problem of these sizes and settings, or nothing. Pointers to
  /// numbers are not read; a null one switches its setting off.
  template <class Problem>
  std::optional<std::string> why_not(const Problem& problem) const {
    const Kernel<Problem>& kernel = kernels_;
    if (kernel.run == nullptr) return no_kernel();
    return kernel.why_not != nullptr ? kernel.why_not(problem) : std::nullopt;
  }

  /// UnsupportedError where why_not() has a reason, ShapeError for impossible sizes.
  template <class Problem>
  void run(const Problem& problem) const {
    const Kernel<Problem>& kernel = kernels_;
    if (kernel.run == nullptr) refuse();
    kernel.run(problem);
  }

  /// The instruction set or architecture of a kernel; empty where there is none.
  template <class Problem>
  std::string_view isa() const {
    const Kernel<Problem>& kernel = kernels_;
    return kernel.isa != nullptr ? kernel.isa() : std::string_view();
  }

  /// Reason why there is no decoder of numbers stored as T, or nothing.
  template <class T>
  std::optional<std::string> why_no_decoder() const {
    const Decoders<T>& decoders = kernels_;
    return decoders.make == nullptr ? std::optional(no_kernel()) : std::nullopt;
  }
  /// Reason why the decoder does not take a model, or nothing.
  template <class T>
  std::optional<std::string> why_not_decode(const DecoderModel& model) const {
    const Decoders<T>& decoders = kernels_;
    return decoders.why_not != nullptr ? decoders.why_not(model) : why_no_decoder<T>();
  }
  /// UnsupportedError for head sizes without an attention kernel, ShapeError for impossible sizes.
  template <class T>
  std::unique_ptr<Decoder<T>> make_decoder(DecoderModel model) const {
    const Decoders<T>& decoders = kernels_;
    if (decoders.make == nullptr) refuse();
    return decoders.make(std::move(model));
  }

 protected:
  explicit Backend(const Kernels& kernels) : kernels_(kernels) {}

 private:
  std::string no_kernel() const;
  [[noreturn]] void refuse() const;

  const Kernels kernels_;
};

/// `other`: what torch calls PrivateUse1, a device that is neither.
enum class DeviceKind : uint8_t { cpu, cuda, other };

/// That of this machine's CPU, with every kernel.
const Backend& cpu();
/// Null where there is none.
const Backend* backend_of(DeviceKind device);
/// Makes `backend`, which outlives all calls, that of a device other than the CPU; null: none.
void register_backend(DeviceKind device, const Backend* backend);

}  // namespace fovea::kernels
