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
  return chosen_isa() == Isa::amx || (chosen_isa() == Isa::avx512_bf16 && !pairs_give_way());
}

}  // namespace fovea
