// Places of tokens and the allowed relation as a tensor.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/places.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <span>

#include "fovea/base/error.h"

namespace fovea {
namespace {

at::Tensor as_rows(const at::Tensor& given, int64_t length, const char* name, at::Device device) {
  const at::Tensor rows = given.dim() == 1 ? given.unsqueeze(0) : given;
  require<ShapeError>(
      rows.dim() == 2 && rows.size(1) == length && !rows.is_floating_point(), "attention",
      "{} must be integers [b, {}]; got {} with {} dimensions and last size {}", name, length,
      at::toString(given.scalar_type()), given.dim(), given.dim() > 0 ? given.size(-1) : 0);
  return rows.to(device, at::kLong);
}

at::Tensor last(const at::Tensor& rows_bs, int64_t count) {
  return rows_bs.narrow(1, rows_bs.size(1) - count, count);
}

// Position inside the run of equal labels: index minus the index at which the run began.
at::Tensor positions_in_documents(const at::Tensor& documents_bs) {
  const int64_t s = documents_bs.size(1);
  const at::Tensor index = at::arange(s, documents_bs.options());
  if (s < 2) return index.unsqueeze(0).expand_as(documents_bs);
  const at::Tensor border = last(documents_bs, s - 1) != documents_bs.narrow(1, 0, s - 1);
  const at::Tensor begins =
      at::cat({at::zeros({documents_bs.size(0), 1}, documents_bs.options()),
               at::where(border, index.narrow(0, 1, s - 1), at::zeros({}, documents_bs.options()))},
              1);
  return index - std::get<0>(at::cummax(begins, 1));
}

// Keys beyond a row's length belong to a document of their own, which no query has.
Places places_by_length(const AttentionContext& context, int64_t queries, int64_t keys,
                        at::Device device) {
  const at::Tensor lengths =
      checked_lengths(context, context.key_lengths_b.size(0), keys).to(device).unsqueeze(1);
  const at::Tensor index = at::arange(keys, lengths.options()).unsqueeze(0);
  return {.query_positions_bt = lengths - queries + at::arange(queries, lengths.options()),
          .key_positions_bs = index,
          .query_documents_bt = at::zeros({1, queries}, lengths.options()),
          .key_documents_bs = (index >= lengths).to(at::kLong)};
}

}  // namespace

at::Tensor checked_lengths(const AttentionContext& context, int64_t batch, int64_t keys) {
  const at::Tensor& given = context.key_lengths_b;
  require<ShapeError>(given.dim() == 1 && given.size(0) == batch && !given.is_floating_point() &&
                          given.scalar_type() != at::kBool,
                      "attention",
                      "key_lengths must be {} integers; got {} dimensions and {} items", batch,
                      given.dim(), given.numel());
  for (const at::Tensor* x : {&context.query_positions_bt, &context.key_positions_bs,
                              &context.query_documents_bt, &context.key_documents_bs}) {
    require<ShapeError>(!x->defined(), "attention",
                        "positions and documents must be absent where key_lengths are given");
  }
  const at::Tensor lengths = given.to(at::kCPU, at::kLong).contiguous();
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t length = lengths.const_data_ptr<int64_t>()[b];
    require<ShapeError>(length >= 0 && length <= keys, "attention",
                        "key_lengths must be between 0 and {}; got {} in row {}", keys, length, b);
  }
  return lengths;
}

at::Tensor documents_of_offsets(const at::Tensor& offsets, int64_t tokens) {
  require<ShapeError>(offsets.dim() == 1 && offsets.numel() >= 2 && !offsets.is_floating_point() &&
                          offsets.scalar_type() != at::kBool,
                      "attention",
                      "document_offsets must be two integers or more, [0, ..., {}]; got {} "
                      "dimensions and {} items",
                      tokens, offsets.dim(), offsets.numel());
  const at::Tensor x = offsets.to(at::kCPU, at::kLong).contiguous();
  const int64_t *at = x.const_data_ptr<int64_t>(), count = x.numel();
  require<ShapeError>(
      at[0] == 0 && at[count - 1] == tokens, "attention",
      "document_offsets must begin with 0 and end with the {} tokens; got {} and {}", tokens, at[0],
      at[count - 1]);
  at::Tensor labels = at::empty({1, tokens}, at::kLong);
  for (int64_t n = 0; n + 1 < count; ++n) {
    require<ShapeError>(at[n] >= 0 && at[n] <= at[n + 1] && at[n + 1] <= tokens, "attention",
                        "document_offsets must ascend from 0 to {}; got {} and then {}", tokens,
                        at[n], at[n + 1]);
    labels.narrow(1, at[n], at[n + 1] - at[n]).fill_(n);
  }
  return labels.to(offsets.device());
}

Places resolve_places(const AttentionContext& context, int64_t queries, int64_t keys,
                      at::Device device) {
  Places places;
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  if (context.key_lengths_b.defined()) return places_by_length(context, queries, keys, device);
  const bool tail = queries <= keys;  // the queries may be the last of the keys
  if (context.key_documents_bs.defined()) {
    places.key_documents_bs = as_rows(context.key_documents_bs, keys, "key_documents", device);
  }
  if (context.query_documents_bt.defined()) {
    places.query_documents_bt =
        as_rows(context.query_documents_bt, queries, "query_documents", device);
  }
  if (places.query_documents_bt.defined() != places.key_documents_bs.defined()) {
    if (places.key_documents_bs.defined()) {
      require<ShapeError>(tail, "attention",
                          "query_documents must be given where {} queries meet {} keys", queries,
                          keys);
      places.query_documents_bt = last(places.key_documents_bs, queries);
    } else {
      require<ShapeError>(queries == keys, "attention",
                          "key_documents must be given where {} queries meet {} keys", queries,
                          keys);
      places.key_documents_bs = places.query_documents_bt;
    }
  }
  if (context.key_positions_bs.defined()) {
    places.key_positions_bs = as_rows(context.key_positions_bs, keys, "key_positions", device);
  } else if (context.query_positions_bt.defined() && queries == keys) {
    places.key_positions_bs =
        as_rows(context.query_positions_bt, queries, "query_positions", device);
  } else if (places.key_documents_bs.defined()) {
    places.key_positions_bs = positions_in_documents(places.key_documents_bs);
  } else {
    places.key_positions_bs = at::arange(keys, options).unsqueeze(0);
  }
  if (context.query_positions_bt.defined()) {
    places.query_positions_bt =
        as_rows(context.query_positions_bt, queries, "query_positions", device);
  } else if (tail) {
    places.query_positions_bt = last(places.key_positions_bs, queries);
  } else {
    require<ShapeError>(
        !context.key_positions_bs.defined() && !places.key_documents_bs.defined(), "attention",
        "query_positions must be given where {} queries meet {} placed keys", queries, keys);
    places.query_positions_bt = at::arange(keys - queries, keys, options).unsqueeze(0);
  }
  return places;
}

void set_places(AttentionContext& context, const Places& places) {
  context.query_positions_bt = places.query_positions_bt;
  context.key_positions_bs = places.key_positions_bs;
  context.query_documents_bt = places.query_documents_bt;
  context.key_documents_bs = places.key_documents_bs;
  context.key_lengths_b = at::Tensor();
  context.on_host = nullptr;
}

AttentionContext on_host(AttentionContext context) {
  at::Tensor* const given[] = {&context.query_positions_bt, &context.key_positions_bs,
                               &context.query_documents_bt, &context.key_documents_bs,
                               &context.key_lengths_b};
  const auto away = [](const at::Tensor* x) { return x->defined() && !x->is_cpu(); };
  if (std::ranges::none_of(given, away)) return context;
  if (const auto known = context.on_host) set_places(context, *known);
  for (at::Tensor* x : given)
    if (away(x)) *x = x->cpu();
  return context;
}

Places host_places(const AttentionContext& context, int64_t queries, int64_t keys) {
  return resolve_places(on_host(context), queries, keys, at::kCPU);
}

bool are_last_keys(const Places& places) {
  const int64_t t = places.query_positions_bt.size(1);
  const auto same = [t](const at::Tensor& q_bt, const at::Tensor& k_bs) {
    return !q_bt.defined() || (k_bs.size(0) == q_bt.size(0) && last(k_bs, t).equal(q_bt));
  };
  return t <= places.key_positions_bs.size(1) &&
         same(places.query_positions_bt, places.key_positions_bs) &&
         same(places.query_documents_bt, places.key_documents_bs);
}

namespace {

/// Where queries of one document stand.
struct QueriesOf {
  int64_t document = 0, least = 0, most = 0;
};

std::vector<QueriesOf> by_document_of(std::span<const TokenPlace> queries) {
  std::vector<QueriesOf> all;
  for (const TokenPlace& q : queries) {
    auto found = std::ranges::find(all, q.document, &QueriesOf::document);
    if (found == all.end())
      found = all.insert(found, {.document = q.document, .least = q.position, .most = q.position});
    found->least = std::min(found->least, q.position);
    found->most = std::max(found->most, q.position);
  }
  return all;
}

}  // namespace

std::pair<int64_t, int64_t> reachable_keys(const MaskRule& rule, const Places& places,
                                           int64_t first_query, int64_t queries) {
  const bool near = rule.sparsity == MaskRule::Sparsity::full && rule.window > 0;
  const auto reaches_key = [&](const QueriesOf& reach, const TokenPlace& key) {
    if (reach.document != key.document || (rule.causal && key.position > reach.most)) return false;
    return !near || key.position < rule.sinks ||
           (key.position > reach.least - rule.window && key.position < reach.most + rule.window);
  };
  const auto batch =
      std::max({places.query_positions_bt.size(0), places.key_positions_bs.size(0),
                places.key_documents_bs.defined() ? places.key_documents_bs.size(0) : int64_t{1}});
  int64_t begin = places.key_positions_bs.size(1), end = 0;
  for (int64_t b = 0; b < batch; ++b) {
    const std::vector<TokenPlace> q = token_places(places.query_positions_bt,
                                                   places.query_documents_bt, b),
                                  k = token_places(places.key_positions_bs, places.key_documents_bs,
                                                   b);
    const std::vector<QueriesOf> reach = by_document_of(
        std::span(q).subspan(static_cast<size_t>(first_query), static_cast<size_t>(queries)));
    const auto seen = [&](const TokenPlace& key) {
      return std::ranges::any_of(reach, [&](const QueriesOf& r) { return reaches_key(r, key); });
    };
    const auto first = std::ranges::find_if(k, seen);
    if (first == k.end()) continue;
    const auto behind = std::find_if(k.rbegin(), k.rend(), seen).base();
    begin = std::min<int64_t>(begin, first - k.begin());
    end = std::max<int64_t>(end, behind - k.begin());
  }
  return end > begin ? std::pair{begin, end - begin} : std::pair<int64_t, int64_t>{};
}

std::vector<TokenPlace> token_places(const at::Tensor& positions, const at::Tensor& documents,
                                     int64_t b) {
  const auto pick = [b](const at::Tensor& x) {
    return x.select(0, x.size(0) == 1 ? 0 : b).cpu().contiguous();
  };
  const at::Tensor p = pick(positions), d = documents.defined() ? pick(documents) : at::Tensor();
  std::vector<TokenPlace> places(static_cast<size_t>(p.numel()));
  for (size_t n = 0; n < places.size(); ++n) {
    places[n] = {.document = d.defined() ? d.const_data_ptr<int64_t>()[n] : 0,
                 .position = p.const_data_ptr<int64_t>()[n]};
  }
  return places;
}

at::Tensor distances(const Places& places) {
  return places.query_positions_bt.unsqueeze(2) - places.key_positions_bs.unsqueeze(1);
}

at::Tensor allowed_mask(const MaskRule& rule, const Places& places) {
  const at::Tensor distance = distances(places);
  const at::Tensor i = places.query_positions_bt.unsqueeze(2),
                   j = places.key_positions_bs.unsqueeze(1);
  at::Tensor seen;
  switch (rule.sparsity) {
    case MaskRule::Sparsity::full:
      seen = rule.window > 0 ? distance.abs() < rule.window
                             : at::ones_like(distance, distance.options().dtype(at::kBool));
      break;
    case MaskRule::Sparsity::strided:
      seen = (distance.abs() < rule.window).logical_or_(distance.abs().remainder(rule.stride) == 0);
      break;
    case MaskRule::Sparsity::fixed:
      seen = (i.div(rule.block, "trunc") == j.div(rule.block, "trunc"))
                 .logical_or_(j.fmod(rule.block) >= rule.block - rule.summary);
      break;
  }
  if (rule.sinks > 0) seen = seen.logical_or_((j < rule.sinks).logical_and(distance >= 0));
  if (rule.causal) seen = seen.logical_and_(distance >= 0);
  if (places.key_documents_bs.defined()) {
    seen = seen.logical_and(places.query_documents_bt.unsqueeze(2) ==
                            places.key_documents_bs.unsqueeze(1));
  }
  return seen.unsqueeze(1);
}

at::Tensor allowed_mask(const MaskRule& rule, int64_t queries, int64_t keys,
                        const AttentionContext& context, at::Device device) {
  return allowed_mask(rule, resolve_places(context, queries, keys, device));
}

}  // namespace fovea
