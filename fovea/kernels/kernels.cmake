# The kernels, family by family: each becomes a unit an instruction set (cmake/FoveaKernels.cmake: fovea_kernels).
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set(narrow neon_bf16 avx512_bf16)
set(both TYPES float BFloat16)
set(contracted OPTIONS ${FOVEA_CONTRACTED})
set(strips AMX_OPTIONS -DFOVEA_ROW_TILES=1) # a strip is three rows of tiles

fovea_kernels(pointwise/attention AttentionTable ${both} ALSO ${narrow} amx APART ${contracted})
fovea_kernels(pointwise/attention_gated GatedPasses ${both} ALSO ${narrow} amx APART ${contracted})
fovea_kernels(pointwise/few_keys FewKeysTable ${both} ${contracted})
fovea_kernels(mixing/mixing MixingTable ${both} ALSO ${narrow} amx ${contracted} ${strips})
fovea_kernels(mixing/mixing_gradient MixingGradientPass ${both} ALSO ${narrow} amx ${contracted} ${strips})
fovea_kernels(mixing/convolution ConvolutionTable TYPES float double ${contracted})
fovea_kernels(decode/mixing_decode MixingDecodeTable ${both} ALSO ${narrow} ${contracted})
fovea_kernels(decode/selector SelectorTable ${both} ALSO ${narrow} ${contracted})
fovea_kernels(decode/sampling SamplingTable ${contracted})
fovea_kernels(decode/decoder DecoderTable ${both})
fovea_kernels(products/elementwise ElementwiseTable ${both})
fovea_kernels(products/matvec MatVecTable ALSO ${narrow} ${contracted})
fovea_kernels(performer/performer PerformerTable ${contracted})

# Loops beside the kernels, over rows and plans, that take a share of their time.
fovea_kernel_sources(any kernels/cpu/decode/attention_decode.cpp kernels/cpu/pointwise/attention_gradient.cpp
  kernels/cpu/pointwise/attention_ring.cpp kernels/cpu/grouped/grouped_gradient.cpp kernels/cpu/grouped/grouped_scan.cpp
  kernels/cpu/grouped/grouped_partitions.cpp)

fovea_layer(kernels DEPENDS fovea_base)
fovea_add_kernels(fovea_kernels decode/decoder_table.h decode/mixing_decode_table.h decode/sampling.h decode/selector.h
  mixing/convolution.h mixing/mixing_table.h performer/performer.h pointwise/attention_table.h pointwise/few_keys.h
  products/elementwise.h products/matvec.h)
