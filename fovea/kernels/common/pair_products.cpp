// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/common/pair_products.h"

#include <cstdlib>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace fovea {

bool made_by_intel() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0, &a, &b, &c, &d) != 0 && b == signature_INTEL_ebx;
#else
  return false;
#endif
}

bool pairs_give_way() {
  const char* const forced = std::getenv("FOVEA_ISA");
  return made_by_intel() && (forced == nullptr || *forced == '\0');
}

bool multiplies_pairs() {
  return chosen_isa() == Isa::amx || (chosen_isa() == Isa::avx512_bf16 && !pairs_give_way());
}

}  // namespace fovea
