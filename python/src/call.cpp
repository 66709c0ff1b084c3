// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "call.h"

#include <iterator>

namespace fovea::python {
namespace {

// Whether x is where the kernels of the call read it.
bool is_near(const Tensor& x, const Tensor& q) {
  if (q.is_cpu()) return x.is_cpu();
  return x.is_cuda() && x.get_device_index() == q.get_device_index();
}

void check_slot(const Call& call, int n) {
  const SlotRow& slot = kTable[n];
  const Tensor& x = *call.slots[n];
  const std::string sizes = slot.sizes;
  const bool is_place = n >= kQueryPositions && n <= kKeyDocuments;
  const bool lies_well =
      n == kDropoutSeed ? x.is_cpu() : is_near(x, call.q) || (is_place && x.is_cpu());
  expect(lies_well && x.is_contiguous() && x.dim() == std::ssize(sizes) &&
             x.scalar_type() == (n < kQueryPositions ? ScalarType::Float : ScalarType::Long),
         "{} must be contiguous on the device of q with {} axes, {}", slot.name, sizes.size(),
         n < kQueryPositions ? "float32" : "int64");
  for (size_t axis = 0; axis < sizes.size(); ++axis) {
    const int64_t size = x.size(static_cast<int64_t>(axis));
    const auto fits = [&](int64_t expected) {
      expect(size == expected, "axis {} of {} must have {} numbers; got {}", axis, slot.name,
             expected, size);
    };
    switch (sizes[axis]) {
      case 'B':
        fits(call.q.size(0));
        break;
      case 'b':
        fits(size == 1 ? 1 : call.q.size(0));
        break;
      case 'h':
        fits(call.q.size(1));
        break;
      case 't':
        fits(call.q.size(2));
        break;
      case 's':
        fits(call.k.size(2));
        break;
      case '1':
        fits(1);
        break;
      case 'm':
        break;
      default:
        expect(size > 0, "axis {} of {} is empty", axis, slot.name);
    }
  }
}

void check_mix(const Call& call, Slot slot) {
  if (!call[slot]) return;
  const Tensor& x = *call[slot];
  expect(x.size(1) == x.size(2) && x.size(0) * x.size(1) == call.q.size(1),
         "{} must be [heads / width, width, width] for {} heads; got [{}, {}, {}]",
         kTable[slot].name, call.q.size(1), x.size(0), x.size(1), x.size(2));
}

void check_groups(const Call& call) {
  const auto &query = call[kGateQuery], &key = call[kGateKey], &pairs = call[kBlockPairs];
  expect(call.gate >= 0 && call.gate <= 4 && (call.gate != 0) == query.has_value(),
         "a gate has one of four forms and its factors; got form {}", call.gate);
  expect(query.has_value() == key.has_value() && (!query || query->size(2) == key->size(2)),
         "gate_query and gate_key must have one number of columns");
  expect(!call[kMembers] ||
             (call.groups >= 1 && call.groups <= 64 && !query && call.q.size(2) <= call.k.size(2)),
         "members must be bits of 1 to 64 groups of keys, of which the queries are the last");
  expect(!pairs || (pairs->size(1) == 2 && call.block_size > 0 && call.q.size(2) <= call.k.size(2)),
         "block_pairs must be [n, 2] of blocks of at least one position, and the queries the last "
         "keys");
  expect(
      !pairs || (!call.joins_pairs() && !call.has_bias() && !query && !call[kMembers] &&
                 mask_rule(call) == MaskRule{.sinks = call.sinks} && call.dropout == 0.0),
      "block_pairs go with no bias, convolution, mix, group or dropout, and a causal mask alone");
  expect(!call.stats ||
             !(call.joins_pairs() || (call[kMembers] && (call.has_bias() || call.dropout > 0.0))),
         "statistics of joined pairs have no kernel");
}

void check_mask_and_dropout(const Call& call) {
  expect(
      call.mask_stride >= 0 && call.mask_block >= 0 && call.mask_summary >= 0 &&
          call.mask_summary <= call.mask_block &&
          (call.mask_block == 0 || (call.mask_stride == 0 && call.window == 0)),
      "a mask is strided, or fixed with a summary within its block and no window; got stride {}, "
      "block {}, summary {} and window {}",
      call.mask_stride, call.mask_block, call.mask_summary, call.window);
  expect(call.dropout >= 0.0 && call.dropout < 1.0 &&
             (call.dropout > 0.0) == call[kDropoutSeed].has_value() && call.dropout_layer >= 0,
         "dropout is in [0, 1) with a seed and a layer of at least 0; got {}", call.dropout);
}

}  // namespace

void check_rows(const Tensor& x, const char* name, const Tensor& q) {
  expect(is_near(x, q) && x.dim() == 4 && x.scalar_type() == q.scalar_type(),
         "{} must be [batch, heads, tokens, width], of the device and dtype of q", name);
  expect(x.stride(3) == 1 || x.size(3) <= 1, "{} must be contiguous along its last axis", name);
}

void check(const Call& call) {
  const Tensor &q = call.q, &k = call.k, &v = call.v;
  check_rows(q, "q", q);
  check_rows(k, "k", q);
  check_rows(v, "v", q);
  expect(k.size(0) == q.size(0) && v.size(0) == q.size(0), "q, k and v must have one batch size");
  expect(k.size(1) > 0 && q.size(1) % k.size(1) == 0 && v.size(1) == k.size(1),
         "the heads of q must be a multiple of those of k and v; got {}, {} and {}", q.size(1),
         k.size(1), v.size(1));
  expect(k.size(2) == v.size(2) && k.size(3) == q.size(3),
         "k must have the tokens of v and the width of q");
  for (int n = 0; n < kSlots; ++n)
    if (call.slots[n]) check_slot(call, n);
  check_mix(call, kMixBefore);
  check_mix(call, kMixAfter);
  check_groups(call);
  check_mask_and_dropout(call);
}

}  // namespace fovea::python
