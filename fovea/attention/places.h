// Position and document of every token of a call, with the defaults of AttentionContext filled in
// (internal to attention/).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "fovea/attention/attention.h"

namespace fovea {

/// int64 tensors whose first size is 1 or the batch. Documents are undefined where there is only
/// one.
struct Places {
  at::Tensor query_positions_bt, key_positions_bs;
  at::Tensor query_documents_bt, key_documents_bs;
};

/// Fills what `context` leaves undefined. Keys without positions stand at 0 ... s-1 of their
/// document; a document is a run of equal labels. Queries without positions are the last t keys.
/// Queries without documents have those of the last t keys. ShapeError where sizes do not fit.
Places resolve_places(const AttentionContext& context, int64_t queries, int64_t keys,
                      at::Device device);

/// The context's places are these.
void set_places(AttentionContext& context, const Places& places);

/// resolve_places() on the CPU, from the host's own tensors where it has them.
Places host_places(const AttentionContext& context, int64_t queries, int64_t keys);

/// The context with its positions and documents on the CPU; they are fetched where the host has
/// none of its own.
AttentionContext on_host(AttentionContext context);

/// Whether the queries are the last keys, place by place.
bool are_last_keys(const Places& places);

/// {first, count} of a range with all keys that `rule` lets some of these queries see; places on
/// the CPU.
std::pair<int64_t, int64_t> reachable_keys(const MaskRule& rule, const Places& places,
                                           int64_t first_query, int64_t queries);

/// context.key_lengths_b as int64 [batch] on the CPU. ShapeError where it does not fit.
at::Tensor checked_lengths(const AttentionContext& context, int64_t batch, int64_t keys);

/// Labels [1, tokens] of documents that begin at the given offsets: integers from 0 to `tokens`,
/// ascending. ShapeError.
at::Tensor documents_of_offsets(const at::Tensor& offsets, int64_t tokens);

/// Row b of int64 positions and documents (undefined = one document) as the kernels' plans read
/// them.
std::vector<TokenPlace> token_places(const at::Tensor& positions, const at::Tensor& documents,
                                     int64_t b);

/// i - j in the document, int64 [b or 1, t, s].
at::Tensor distances(const Places& places);

/// The relation of `rule` between these tokens, bool [b or 1, 1, t, s].
at::Tensor allowed_mask(const MaskRule& rule, const Places& places);

}  // namespace fovea
