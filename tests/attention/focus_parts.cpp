// Decompositions of hard Focus.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/attention/focus_parts.h"

#include <ATen/ATen.h>

#include <set>

#include "fovea/attention/mechanisms/focus.h"
#include "fovea/attention/pipeline.h"
#include "fovea/attention/places.h"
#include "fovea/attention/positions/bias.h"
#include "fovea/base/error.h"

namespace fovea::testing {
namespace {

AttentionPart attend(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& k,
                     const at::Tensor& v, const Places& places, const at::Tensor& pairs) {
  const at::ScalarType wide = accumulate_type(q.scalar_type());
  at::Tensor s = scaled_logits(spec, q.to(wide), k.to(wide), {});
  if (spec.soft_cap > 0.0) s = at::tanh(s / spec.soft_cap) * spec.soft_cap;
  if (const at::Tensor bias = position_bias(spec, {}, places, wide); bias.defined()) s = s + bias;
  const at::Tensor seen = allowed_mask(spec.mask, places).logical_and(pairs);
  const Softmax softmax = softmax_rows(s.masked_fill(~seen, -kInfinity), {}, true);
  return {weighted_values(softmax.weights_bhts, v.to(wide)), softmax.lse_bht};
}

// One row of the batch and the places of all its tokens.
struct Sequence {
  const AttentionSpec& spec;
  at::Tensor q, k, v, members_t;  // [1, heads, t, d], [t]
  Places places;

  Places at_tokens(const at::Tensor& queries, const at::Tensor& keys) const {
    const auto pick = [](const at::Tensor& x, const at::Tensor& index) {
      return x.defined() ? x.index_select(1, index) : x;
    };
    return {.query_positions_bt = pick(places.query_positions_bt, queries),
            .key_positions_bs = pick(places.key_positions_bs, keys),
            .query_documents_bt = pick(places.query_documents_bt, queries),
            .key_documents_bs = pick(places.key_documents_bs, keys)};
  }

  // Adds the distant pairs of some tokens that `bits` (of the common groups) accepts.
  template <class Accept>
  void add(const at::Tensor& queries, const at::Tensor& keys, const Accept& accept,
           AttentionPart& total) const {
    const Places some = at_tokens(queries, keys);
    const at::Tensor common = members_t.index_select(0, queries)
                                  .unsqueeze(1)
                                  .bitwise_and(members_t.index_select(0, keys).unsqueeze(0));
    const at::Tensor pairs = accept(common)
                                 .view({1, 1, queries.size(0), keys.size(0)})
                                 .logical_and(focus_local(spec.focus, some).logical_not());
    const AttentionPart part = attend(spec, q.index_select(2, queries), k.index_select(2, keys),
                                      v.index_select(2, keys), some, pairs);
    const AttentionPart before{total.out_bhte.index_select(2, queries),
                               total.lse_bht.index_select(2, queries)};
    const AttentionPart both = merge_parts(before, part);
    total.out_bhte = total.out_bhte.index_copy(2, queries, both.out_bhte);
    total.lse_bht = total.lse_bht.index_copy(2, queries, both.lse_bht);
  }
};

at::Tensor tokens_with(const at::Tensor& members_t, int64_t bits) {
  return members_t.bitwise_and(bits).ne(0).nonzero().flatten();
}

void add_groups(const Sequence& sequence, AttentionPart& total) {
  for (int64_t k = 0; k < sequence.spec.focus.groups; ++k) {
    const auto bit = static_cast<int64_t>(uint64_t{1} << k);
    const at::Tensor tokens = tokens_with(sequence.members_t, bit);
    if (tokens.numel() == 0) continue;
    const auto lowest_is_this = [bit](const at::Tensor& common) {
      return common.bitwise_and(common.neg()).eq(bit);
    };
    sequence.add(tokens, tokens, lowest_is_this, total);
  }
}

void add_classes(const Sequence& sequence, AttentionPart& total) {
  const at::Tensor& members = sequence.members_t;
  const at::Tensor readable = readable_rows(members);
  const int64_t* data = readable.const_data_ptr<int64_t>();
  for (const int64_t set : std::set<int64_t>(data, data + readable.numel())) {
    sequence.add(
        members.eq(set).nonzero().flatten(), tokens_with(members, set),
        [](const at::Tensor& common) { return common.ne(0); }, total);
  }
}

}  // namespace

AttentionPart attend_pairs(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& k,
                           const at::Tensor& v, const AttentionContext& context,
                           const at::Tensor& pairs) {
  return attend(spec, q, k, v, resolve_places(context, q.size(2), k.size(2), q.device()), pairs);
}

AttentionPart focus_by_parts(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& k,
                             const at::Tensor& v, const at::Tensor& members,
                             const AttentionContext& context, FocusScheme scheme) {
  checked_call(spec, q, k, v, {.members_bs = members}, context);
  require<UnsupportedError>(
      spec.focus.gate == FocusSpec::Gate::hard && !spec.sink_logit && !spec.differential &&
          spec.multi_token == MultiTokenSpec{} && spec.head_mix == HeadMixSpec{} &&
          q.size(2) == k.size(2),
      "focus", "parts exist for self-attention with gate hard and no stage that joins pairs");
  const Places all = resolve_places(context, q.size(2), k.size(2), q.device());
  const AttentionPart local = attend(spec, q, k, v, all, focus_local(spec.focus, all));
  std::vector<at::Tensor> out, lse;
  for (int64_t b = 0; b < q.size(0); ++b) {
    const auto row = [b](const at::Tensor& x) {
      return x.defined() ? x.narrow(0, x.size(0) == 1 ? 0 : b, 1) : x;
    };
    const Sequence sequence{.spec = spec,
                            .q = row(q),
                            .k = row(k),
                            .v = row(v),
                            .members_t = members[b],
                            .places = {row(all.query_positions_bt), row(all.key_positions_bs),
                                       row(all.query_documents_bt), row(all.key_documents_bs)}};
    AttentionPart total{row(local.out_bhte), row(local.lse_bht)};
    scheme == FocusScheme::canonical_group ? add_groups(sequence, total)
                                           : add_classes(sequence, total);
    out.push_back(total.out_bhte);
    lse.push_back(total.lse_bht);
  }
  return {at::cat(out), at::cat(lse)};
}

}  // namespace fovea::testing
