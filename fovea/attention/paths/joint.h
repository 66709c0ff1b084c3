// Attention by several calls of the pointwise kernels, a few keys more and rows that are known,
// under one softmax and as one operation (internal to attention/).
//
//   blocks     calls over disjoint rows and keys, in place: some heads, every step-th token
//   few keys   for all rows, joined to what the blocks have found
//   (kernels/common/few_keys.h) known      rows of another result, given or of a few queries
//   that see all keys before them
//              (few_rows.h); the blocks' result for them is overwritten
//
// Nothing is copied but the lse: strides name the tokens of a block. Backward, a block gets the lse
// of the whole softmax, and its gradients are those of the whole.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "fovea/attention/paths/few_rows.h"
#include "fovea/attention/paths/parts.h"

namespace fovea {

/// Below this many rows the kernels of single rows are faster.
constexpr int64_t kFewestJointRows = 16;

/// Tokens `first`, first + step, ... of classes that begin one token further each.
struct TokenSteps {
  int64_t first = 0, step = 1, count = 0;
};

struct JointBlock {
  int64_t row = 0, rows = 0;           ///< of the batch; with several classes one
  int64_t classes = 1;                 ///< as rows of a batch of their own
  int64_t kv_head = 0, kv_heads = 0;   ///< and all query heads that read them
  TokenSteps queries, keys;            ///< of the first class
  c10::intrusive_ptr<FusedCall> call;  ///< with visits
};

struct JointFew {
  std::vector<int64_t> key_rows;
  /// By set and query: bit n where it reads key n; set_of_head[h]: that of head h.
  std::vector<std::vector<uint64_t>> seen;
  std::vector<int64_t> set_of_head;
};

/// Inputs: JointOperands in their order; results: out and lse.
struct JointCall : Operation {
  std::vector<JointBlock> blocks;  ///< every row of the result in one, every key in one
  JointFew few;
  bool keeps_rest = false;                   ///< as in FusedCall
  std::vector<int64_t> known;                ///< rows of the result
  c10::intrusive_ptr<FewRowsCall> few_rows;  ///< of these, where the call has their queries

  Tensors forward(const Tensors& inputs, Tensors& kept) const override;
  Tensors backward(const Tensors& kept, const Tensors& grads,
                   const std::vector<bool>& wanted) const override;
};

/// Operands of a JointCall. few_q: queries of the few keys, undefined: q; known_*: undefined
/// without such rows, or where JointCall::few_rows has them.
struct JointOperands {
  at::Tensor q_bhtd, k_bgsd, v_bgse, few_q_bhtd, tau_bt, sink_h, known_out_bhne, known_lse_bhn;
};

/// A block that is the whole call: `part` has its mask and its places.
JointBlock whole_block(const AttentionCall& part);
/// The tokens of a block of x [b, h, t, d] or [b, h, t]; heads [head, head + heads).
at::Tensor tokens_of(const at::Tensor& x, const JointBlock& block, const TokenSteps& tokens,
                     int64_t head, int64_t heads);

/// Output and lse; float16 is computed in float32. Differentiable in the operands.
AttentionResult run_joint(const JointOperands& given, c10::intrusive_ptr<JointCall> call);

}  // namespace fovea
