// The reference against independent truths: scalar loops, slices, merged parts, differences.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "fovea/attention/attention.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/gradcheck.h"

namespace fovea {
namespace {

using namespace fovea::testing;

// A scalar function of output and lse with different weights everywhere.
at::Tensor probe(const AttentionResult& result) {
  at::Tensor sum = (result.out_bhte * random_normal(result.out_bhte.sizes(), 77)).sum();
  if (result.lse_bht.defined()) {
    const at::Tensor finite = result.lse_bht.masked_fill(at::isinf(result.lse_bht.detach()), 0.0);
    sum = sum + (finite * random_normal(finite.sizes(), 78)).sum();
  }
  return sum;
}

TEST(Reference, GradientsEqualCentralDifferencesForEveryStage) {
  for (const auto& [name, spec] : all_specs()) {
    AttentionSpec tiny = spec;
    tiny.head_dim = 3;
    const AttentionInputs in = random_inputs(tiny, 1, 6).with_gradient();
    AttentionContext context = packed_context({4, 2});
    context.want_lse = true;
    expect_gradients(
        [&](const auto&) {
          return probe(reference_attention(tiny, in.q, in.k, in.v, in.tensors, context));
        },
        in.leaves(), name);
  }
}

TEST(Sdpa, EqualsTheReferenceWithItsGradientsForEveryStage) {
  for (const auto& [name, spec] : all_specs()) {
    for (const bool packed : {false, true}) {
      const AttentionInputs in = random_inputs(spec, 2, 70).with_gradient();
      const AttentionContext context = packed ? packed_context({40, 30}) : AttentionContext{};
      const AttentionResult fast = attention(spec, in.q, in.k, in.v, in.tensors, context);
      const AttentionResult slow = reference_attention(spec, in.q, in.k, in.v, in.tensors, context);
      EXPECT_LT(relative_error(fast.out_bhte, slow.out_bhte), 1e-12)
          << name << fast.path.name << " " << fast.path.plan;
      const auto a = gradients(probe(fast), in.leaves()), b = gradients(probe(slow), in.leaves());
      for (size_t n = 0; n < a.size(); ++n)
        EXPECT_LT(relative_error(a[n], b[n]), 1e-12) << name << " gradient " << n;
    }
  }
}

}  // namespace
}  // namespace fovea
