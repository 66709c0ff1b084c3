# The CUDA kernels, form by form (cmake/FoveaCuda.cmake; forms.h says what each knows).
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
fovea_cuda_plan()
fovea_cuda_decoder()
foreach(head_dim 64 128)
  fovea_cuda_rows(${head_dim})
  # The list is searched in this order: what knows less comes first.
  fovea_cuda_attention(wgmma ${head_dim} plain causal)
  if(FOVEA_CUDA_UNITS STREQUAL "all")
    fovea_cuda_attention(wgmma ${head_dim} plain full)
    foreach(score temperature soft_cap alibi)
      fovea_cuda_attention(wgmma ${head_dim} ${score} causal)
    endforeach()
    foreach(mask window documents)
      fovea_cuda_attention(wgmma ${head_dim} plain ${mask})
    endforeach()
    fovea_cuda_attention(mma ${head_dim} plain full)
    fovea_cuda_attention(mma ${head_dim} plain causal)
    foreach(mask groups groups_several local_rest)
      fovea_cuda_attention(wgmma ${head_dim} plain ${mask})
      fovea_cuda_attention(mma ${head_dim} plain ${mask})
    endforeach()
  endif()
  fovea_cuda_attention(wgmma ${head_dim} any any)
  fovea_cuda_attention(mma ${head_dim} any any)
endforeach()
fovea_add_cuda()
