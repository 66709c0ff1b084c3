// Launches of the wgmma kernels, and the tensor maps that they read.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "fovea/kernels/cuda/attention/backward_wgmma.cuh"
#include "fovea/kernels/cuda/attention/forms.cuh"
#include "fovea/kernels/cuda/attention/forward_wgmma.cuh"
#include "fovea/kernels/cuda/attention/units.h"
#include "fovea/kernels/cuda/launch.cuh"

namespace fovea::kernels::cuda {

#ifdef FOVEA_EMULATED
inline int make_map(TensorMap& map, const Rows& t, int D, int64_t rows, int heads, int batch,
                    int box_rows) {
  map = {static_cast<const uint16_t*>(t.data),
         {D, rows, heads, batch},
         {t.row, t.head, t.batch},
         box_rows};
  return 0;
}
#else
// [b, head, row, c] of bfloat16; boxes of 64 columns and `box_rows` rows, 128-byte swizzle. The
// stride of a dimension of size 1 is not read: torch leaves any number there.
inline int make_map(TensorMap& map, const Rows& t, int D, int64_t rows, int heads, int batch,
                    int box_rows) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault,
                                     &found);
    return reinterpret_cast<Encode>(entry);
  }();
  if (!encode) return cudaErrorNotSupported;
  const auto stride = [D](int64_t size, int64_t given) {
    return static_cast<cuuint64_t>(size == 1 ? D : given) * 2;
  };
  const cuuint64_t dims[4] = {cuuint64_t(D), cuuint64_t(rows), cuuint64_t(heads),
                              cuuint64_t(batch)};
  const cuuint64_t strides[3] = {stride(rows, t.row), stride(heads, t.head),
                                 stride(batch, t.batch)};
  const cuuint32_t box[4] = {64, cuuint32_t(box_rows), 1, 1}, steps[4] = {1, 1, 1, 1};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, t.data, dims, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? 0 : cudaErrorInvalidValue;
}
#endif

template <int D, ScoreForm kScore, MaskForm kMask>
int wgmma_forward(const Problem& p, Stream stream) {
  using V = MaskOf<kMask>;
  using Shape = ForwardWgmmaShape<D, V::kPartialOutput, (gate_chunks(kScore) > 0)>;
  const int64_t tiles = (V::rows(p) + Shape::kQueries - 1) / Shape::kQueries;
  TensorMaps maps{};
  if constexpr (!V::kPartialOutput) {
    for (const int error : {make_map(maps.q, p.q, D, p.queries, p.heads, p.batch, Shape::kQueries),
                            make_map(maps.k, p.k, D, p.keys, p.kv_heads, p.batch, Shape::kKeys),
                            make_map(maps.v, p.v, D, p.keys, p.kv_heads, p.batch, Shape::kKeys)})
      if (error != 0) return error;
  }
  const auto kernel = forward_wgmma_kernel<D, ScoreOf<kScore>, V>;
  const dim3 grid = grid_of(tiles, p.heads, p.batch);
  if constexpr (V::kMerges)
    return launch_overlapped(kernel, grid, Shape::kThreads, Shape::kShared, stream, p, maps);
  else
    return launch(kernel, grid, Shape::kThreads, Shape::kShared, stream, p, maps);
}

// Heads whose blocks run side by side: two at least, or the last long walk ends alone; as many as
// have q, d_o and the float32 dq in 24 MiB of the level-2 cache (an H100 has 50).
inline int heads_together(const Problem& p, int head_dim, bool sinks) {
  if (sinks) return p.kv_heads;  // the walks of the sinks first
  const int64_t bytes = int64_t(p.queries) * (p.heads / p.kv_heads) * head_dim * 8;
  int together = 1;
  for (int n = 2; n <= p.kv_heads; ++n)
    if (p.kv_heads % n == 0 && (together == 1 || n * bytes <= (int64_t{24} << 20))) together = n;
  return together;
}

template <int D, ScoreForm kScore, MaskForm kMask>
int wgmma_backward(const Problem& p, Stream stream) {
  using V = MaskOf<kMask>;
  using Shape = BackwardWgmmaShape<D>;
  BackwardMaps maps{};
  if constexpr (!V::kPartialOutput) {
    for (const int error :
         {make_map(maps.q, p.q, D, p.queries, p.heads, p.batch, Shape::kQueries),
          make_map(maps.d_o, p.d_o, D, p.queries, p.heads, p.batch, Shape::kQueries),
          make_map(maps.k, p.k, D, p.keys, p.kv_heads, p.batch, Shape::kKeys),
          make_map(maps.v, p.v, D, p.keys, p.kv_heads, p.batch, Shape::kKeys)})
      if (error != 0) return error;
  }
  int64_t tiles = (V::keys(p) + Shape::kKeys - 1) / Shape::kKeys;
  if constexpr (V::kMerges) tiles += V::sink_tiles(p, Shape::kKeys) * V::parts(p, Shape::kQueries);
  const int together = heads_together(p, D, V::kHasSinks && p.sinks > 0);
  return launch(backward_wgmma_kernel<D, ScoreOf<kScore>, V>,
                grid_of(tiles * together, p.kv_heads / together, p.batch), Shape::kThreads,
                Shape::kShared, stream, p, maps, together);
}

}  // namespace fovea::kernels::cuda
