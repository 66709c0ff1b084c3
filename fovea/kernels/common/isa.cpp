// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/common/isa.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/base/nearest_name.h"
#include "fovea/kernels/common/pair_products.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace fovea {
namespace {

constexpr auto kNames = [] {
  std::array<std::string_view, std::size(kIsaNames)> names;
  std::ranges::copy(kIsaNames, names.begin());
  return names;
}();

#if defined(__x86_64__)
// GCC 12's __builtin_cpu_supports knows no AMX; leaf 7 tells (EDX bit 22 amx-bf16, bit 24
// amx-tile).
// The operating system must grant the tiles' registers to the process, too.
bool cpu_has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d >> 22 & 1u) == 0 || (d >> 24 & 1u) == 0) return false;
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl(2)
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

constexpr Isa kKnown[] = {
#if defined(__x86_64__)
    Isa::scalar, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx
#elif defined(__aarch64__)
    Isa::scalar, Isa::neon, Isa::neon_bf16
#else
    Isa::scalar
#endif
};

std::vector<std::string> names_of(std::span<const Isa> isas) {
  std::vector<std::string> names;
  for (const Isa isa : isas) names.emplace_back(kIsaNames[static_cast<size_t>(isa)]);
  return names;
}

Isa choose() {
  require<ConfigError>(built_isas().front() <= found_isa(), "this CPU",
                       "offers '{}'; this build has kernels for {}; build with `make build`, or "
                       "configure with -DFOVEA_KERNELS=all",
                       kIsaNames[static_cast<size_t>(found_isa())],
                       fmt::join(names_of(built_isas()), ", "));
  const char* forced = std::getenv("FOVEA_ISA");
  if (forced == nullptr || *forced == '\0') {
    // No machine has measured neon_bf16: FOVEA_ISA asks for it.
    return found_isa() == Isa::neon_bf16 ? Isa::neon : found_isa();
  }
  const std::vector<std::string> known = names_of(kKnown);
  const auto named = std::ranges::find(known, forced);
  if (named == known.end())
    fail<ConfigError>("FOVEA_ISA", "expected one of {}; got '{}'{}", fmt::join(known, ", "), forced,
                      did_you_mean(forced, known));
  const Isa isa = kKnown[named - known.begin()];
  require<ConfigError>(isa <= found_isa(), "FOVEA_ISA",
                       "this CPU offers up to '{}'; got '{}'; unset FOVEA_ISA or lower it",
                       kIsaNames[static_cast<size_t>(found_isa())], forced);
  require<ConfigError>(std::ranges::find(built_isas(), isa) != built_isas().end(), "FOVEA_ISA",
                       "this build has kernels for {}; got '{}'; build with `make build`, or "
                       "configure with -DFOVEA_KERNELS=all",
                       fmt::join(names_of(built_isas()), ", "), forced);
  return isa;
}

}  // namespace

std::span<const std::string_view> enum_names(Isa) { return kNames; }

std::span<const Isa> known_isas() { return kKnown; }

Isa found_isa() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::scalar;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512cd");
  if (!avx512) return Isa::avx2;
  // Every CPU with AVX512_BF16 has AVX512_VNNI; a virtual machine may hide it.
  if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512vnni"))
    return Isa::avx512;
  return cpu_has_amx() ? Isa::amx : Isa::avx512_bf16;
#elif defined(__aarch64__)
#if defined(__linux__)
  const unsigned long features = getauxval(AT_HWCAP2);
  if ((features & HWCAP2_BF16) != 0 && (features & HWCAP2_I8MM) != 0) return Isa::neon_bf16;
#endif
  return Isa::neon;
#else
  return Isa::scalar;
#endif
}

Isa chosen_isa() {
  static const Isa isa = choose();
  return isa;
}

bool made_by_intel() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0, &a, &b, &c, &d) != 0 && b == signature_INTEL_ebx;
#else
  return false;
#endif
}

bool has_fast_bfloat16() {
  const Isa isa = found_isa();
  return isa == Isa::amx || (isa == Isa::avx512_bf16 && !made_by_intel());
}

}  // namespace fovea
