// Places of tokens and the allowed relation as a tensor.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/places.h"

#include <ATen/ATen.h>

#include "fovea/base/error.h"

namespace fovea {
namespace {

at::Tensor as_rows(const at::Tensor& given, int64_t length, const char* name, at::Device device) {
  const at::Tensor rows = given.dim() == 1 ? given.unsqueeze(0) : given;
  require<ShapeError>(rows.dim() == 2 && rows.size(1) == length && !rows.is_floating_point(),
                      "attention",
                      "{} must be integers [b, {}]; got {} dimensions and last size {}", name,
                      length, given.dim(), given.dim() > 0 ? given.size(-1) : 0);
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

}  // namespace

Places resolve_places(const AttentionContext& context, int64_t queries, int64_t keys,
                      at::Device device) {
  Places places;
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
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
