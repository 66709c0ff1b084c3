// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/common/pair_products.h"

#include <cstdlib>

namespace fovea {

bool pairs_give_way() {
  const char* const forced = std::getenv("FOVEA_ISA");
  return made_by_intel() && (forced == nullptr || *forced == '\0');
}

bool multiplies_pairs() {
  const Isa isa = chosen_isa();
  return isa == Isa::amx || isa == Isa::neon_bf16 || (isa == Isa::avx512_bf16 && !pairs_give_way());
}

}  // namespace fovea
