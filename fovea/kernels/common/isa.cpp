// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/common/isa.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/base/nearest_name.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace fovea {
namespace {

constexpr std::array<std::string_view, 5> kNames{"scalar", "avx2", "avx512", "avx512_bf16", "amx"};
constexpr Isa kBuilt[] {
  Isa::scalar,
#if defined(FOVEA_HAS_avx2)
      Isa::avx2,
#endif
#if defined(FOVEA_HAS_avx512)
      Isa::avx512,
#endif
#if defined(FOVEA_HAS_avx512_bf16)
      Isa::avx512_bf16,
#endif
#if defined(FOVEA_HAS_amx)
      Isa::amx,
#endif
};

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

std::vector<std::string_view> built_names() {
  std::vector<std::string_view> names;
  for (const Isa isa : kBuilt) names.push_back(kNames[static_cast<size_t>(isa)]);
  return names;
}

Isa choose() {
  const char* forced = std::getenv("FOVEA_ISA");
  if (forced == nullptr || *forced == '\0') return found_isa();
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] != forced) continue;
    const Isa isa = static_cast<Isa>(i);
    require<ConfigError>(isa <= found_isa(), "FOVEA_ISA",
                         "this CPU offers up to '{}'; got '{}'; unset FOVEA_ISA or lower it",
                         enum_names(isa)[static_cast<size_t>(found_isa())], forced);
    require<ConfigError>(std::ranges::find(kBuilt, isa) != std::end(kBuilt), "FOVEA_ISA",
                         "this build has kernels for {}; got '{}'; build with `make build`, or "
                         "configure with -DFOVEA_KERNELS=all",
                         fmt::join(built_names(), ", "), forced);
    return isa;
  }
  const std::vector<std::string> names(kNames.begin(), kNames.end());
  fail<ConfigError>("FOVEA_ISA", "expected one of {}; got '{}'{}", fmt::join(kNames, ", "), forced,
                    did_you_mean(forced, names));
}

}  // namespace

std::span<const std::string_view> enum_names(Isa) { return kNames; }

std::span<const Isa> built_isas() { return kBuilt; }

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
#else
  return Isa::scalar;
#endif
}

Isa chosen_isa() {
  static const Isa isa = choose();
  return isa;
}

bool has_fast_bfloat16() { return found_isa() >= Isa::avx512_bf16; }

}  // namespace fovea
