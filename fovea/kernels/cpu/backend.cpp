// The CPU's kernels as a backend.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/backend.h"

#include <type_traits>

#include "fovea/kernels/common/isa.h"
#include "fovea/kernels/cpu/decode/decoder.h"
#include "fovea/kernels/cpu/decode/mixing_decode.h"
#include "fovea/kernels/cpu/decode/sampling.h"
#include "fovea/kernels/cpu/decode/selector.h"
#include "fovea/kernels/cpu/grouped/grouped.h"
#include "fovea/kernels/cpu/mixing/convolution.h"
#include "fovea/kernels/cpu/mixing/mixing.h"
#include "fovea/kernels/cpu/performer/performer.h"
#include "fovea/kernels/cpu/pointwise/attention.h"
#include "fovea/kernels/cpu/pointwise/few_keys.h"
#include "fovea/kernels/cpu/products/elementwise.h"
#include "fovea/kernels/cpu/products/matvec.h"
#include "fovea/kernels/cpu/tile_sizes.h"

namespace fovea::kernels {
namespace {

using Reason = std::optional<std::string>;

// Reasons against a problem, by kind; kinds without one take all sizes and settings.

template <class Problem>
Reason why_not_widths(const Problem& p) {
  return why_not_attention_kernels(p.sizes.head_dim, p.sizes.value_dim);
}

template <class T>
Reason reason_against(const AttentionForward<T>& p) {
  return why_not_widths(p);
}
template <class T>
Reason reason_against(const AttentionBackward<T>& p) {
  return why_not_widths(p);
}
template <class T>
Reason reason_against(const AttentionDecode<T>& p) {
  return why_not_widths(p);
}
template <class T>
Reason reason_against(const GroupedForward<T>& p) {
  if (Reason why = why_not_grouped_kernels(p.rule)) return why;
  return why_not_widths(p);
}
template <class T>
Reason reason_against(const GroupedBackward<T>& p) {
  if (Reason why = why_not_grouped_kernels(p.rule)) return why;
  return why_not_widths(p);
}
template <class T>
Reason reason_against(const MixingForward<T>& p) {
  return why_not_mixing_kernels(p.sizes, p.mixing);
}
template <class T>
Reason reason_against(const MixingBackward<T>& p) {
  return why_not_mixing_kernels(p.sizes, p.mixing);
}
template <class T>
Reason reason_against(const MixingDecode<T>& p) {
  return why_not_mixing_decode(p.sizes, p.rule, p.mixing);
}

// Names of instruction sets, by kind: some kernels exist for fewer sets than the CPU offers.

template <class Problem>
std::string_view isa_of(std::type_identity<Problem>) {
  return enum_names(Isa{})[static_cast<size_t>(chosen_isa())];
}
template <class T>
std::string_view isa_of(std::type_identity<AttentionForward<T>>) {
  return attention_isa<T>();
}
template <class T>
std::string_view isa_of(std::type_identity<MixingForward<T>>) {
  return mixing_isa<T>();
}
template <class T>
std::string_view isa_of(std::type_identity<MixingDecode<T>>) {
  return mixing_decode_isa<T>();
}
std::string_view isa_of(std::type_identity<PerformerForward>) { return performer_isa(); }

Kernels all_kernels() {
  Kernels all;
  all.each([]<class Problem>(Kernel<Problem>& kernel) {
    kernel.run = [](const Problem& p) { kernels::run(p); };
    if constexpr (requires(const Problem& p) { reason_against(p); })
      kernel.why_not = [](const Problem& p) { return reason_against(p); };
    kernel.isa = [] { return isa_of(std::type_identity<Problem>()); };
  });
  all.Decoders<float>::make = kernels::make_decoder<float>;
  all.Decoders<BFloat16>::make = kernels::make_decoder<BFloat16>;
  return all;
}

class Cpu final : public Backend {
 public:
  Cpu() : Backend(all_kernels()) {}

  std::string_view name() const override { return "cpu"; }
  TileSizes tile_sizes() const override { return kTileSizes; }
  bool prefers_decode(const AttentionSizes& sizes) const override {
    return kernels::prefers_decode(sizes);
  }
};

}  // namespace

const Backend& cpu() {
  static const Cpu backend;
  return backend;
}

}  // namespace fovea::kernels
