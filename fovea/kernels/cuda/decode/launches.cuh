// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "fovea/kernels/cuda/decode/decode_attention.cuh"
#include "fovea/kernels/cuda/decode/draw.cuh"
#include "fovea/kernels/cuda/decode/launches.h"
#include "fovea/kernels/cuda/decode/product.cuh"
#include "fovea/kernels/cuda/launch.cuh"

namespace fovea::kernels::cuda {

int launch_stream(const StreamParameters& p, Stream stream) {
  return launch_overlapped(stream_kernel, grid_of(p.rows, 1, 1), kDecodeThreads, 64 + 2 * p.width,
                           stream, p);
}

namespace {

template <int kTiles, bool kGated, bool kFused>
int launch_tiles(ProductParameters p, Stream stream) {
  using Shape = ProductShape<kTiles, kGated, kFused>;
  for (const ProductMatrix& m : p.matrices)
    p.tiles += (m.outputs + kProductOutputs - 1) / kProductOutputs;
  if (kGated) p.tiles /= 2;
  const int64_t features = p.groups.present() ? p.groups.features : 0,
                blocks = p.tiles + (features + kDecodeWarps - 1) / kDecodeWarps;
  return launch_overlapped(product_kernel<kTiles, kGated, kFused>,
                           grid_of(blocks, (p.rows + Shape::kRows - 1) / Shape::kRows, 1),
                           kDecodeThreads, static_cast<int>(Shape::shared(p.inputs)), stream, p);
}

template <bool kGated>
int launch_rows(const ProductParameters& p, bool fused, Stream stream) {
  if (fused) return launch_tiles<1, kGated, true>(p, stream);
  if (p.rows <= 8) return launch_tiles<1, kGated, false>(p, stream);
  if (p.rows <= 16) return launch_tiles<2, kGated, false>(p, stream);
  if (p.rows <= 32) return launch_tiles<4, kGated, false>(p, stream);
  return launch_tiles<8, kGated, false>(p, stream);
}

template <int kLanes>
int launch_lanes(const DecodeAttentionParameters& p, Stream stream) {
  const int group = p.heads / p.kv_heads;
  const auto with = [&](auto kernel, int heads) {
    const int chunks = (group + heads - 1) / heads;
    return launch_overlapped(kernel, grid_of(p.splits, p.kv_heads * chunks, p.rows),
                             kAttentionThreads, DecodeAttentionShape<kLanes>::kShared, stream, p);
  };
  const auto of = [&]<bool kGrouped>(std::bool_constant<kGrouped>) {
    if (group == 1) return with(decode_attention_kernel<kLanes, 1, kGrouped>, 1);
    return with(decode_attention_kernel<kLanes, kAttentionHeads, kGrouped>, kAttentionHeads);
  };
  return p.groups.present() ? of(std::true_type()) : of(std::false_type());
}

}  // namespace

int launch_product(const ProductParameters& p, bool fused, Stream stream) {
  return p.end == ProductEnd::gate ? launch_rows<true>(p, fused, stream)
                                   : launch_rows<false>(p, fused, stream);
}

int launch_decode_attention(const DecodeAttentionParameters& p, Stream stream) {
  if (p.head_dim <= 32) return launch_lanes<4>(p, stream);
  if (p.head_dim <= 64) return launch_lanes<8>(p, stream);
  if (p.head_dim <= 128) return launch_lanes<16>(p, stream);
  return launch_lanes<32>(p, stream);
}

int launch_draw(const DrawParameters& p, Stream stream) {
  return launch(draw_kernel, grid_of(p.texts, 1, 1), kDrawThreads, draw_shared_bytes(p.tokens),
                stream, p);
}

}  // namespace fovea::kernels::cuda
