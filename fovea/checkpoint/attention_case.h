// Case files: one attention in one safetensors file, and the run that answers it (format:
// docs/attention-case.md).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "fovea/attention/attention.h"
#include "fovea/checkpoint/safetensors.h"

namespace fovea {

/// How to compute a case: the paths of attention(), or token by token from a cache.
enum class CasePath { automatic, reference, decode, fused };
std::span<const std::string_view> enum_names(CasePath);

/// A case as read: everything attention() takes, a given gradient of the output, and what another
/// implementation expects.
struct AttentionCase {
  AttentionSpec spec;
  at::Tensor q_bhtd, k_bgsd, v_bgse;
  AttentionTensors tensors;
  AttentionContext context;
  at::Tensor grad_out_bhte, grad_lse_bht;  ///< undefined where absent
  TensorMap expected;                      ///< "out", "lse", "grad_q", ...
};

/// Reads a case. InputError naming the file and the tensor or key that is missing, unknown or does
/// not fit; CheckpointError for a damaged safetensors file; ConfigError for an impossible spec.
AttentionCase load_attention_case(const std::filesystem::path& path);

struct CaseOptions {
  CasePath path = CasePath::automatic;
  std::optional<at::ScalarType> dtype;    ///< of q, k, v; as in the file where absent
  std::optional<uint64_t> gradient_seed;  ///< draws grad_out where the file has none
  at::Device device = at::kCPU;
};

struct CaseResult {
  /// "out", "lse", and with a gradient "grad_q", "grad_k", "grad_v", "grad_tau", ...
  TensorMap tensors;
  std::map<std::string, double> errors;  ///< max-norm error relative to each expected tensor
  PathTaken path;
};

/// Runs a case. Gradients are computed where the file has grad_out (or a seed draws one), except by
/// `decode`, which has none. UnsupportedError where the path cannot run the case (fused; decode of
/// packed documents, of missing keys or without causality).
CaseResult run_attention_case(const AttentionCase& attention_case, const CaseOptions& options = {});
/// Runs the case of a file, also one of another kind (part_case.h).
CaseResult run_attention_case(const std::filesystem::path& path, const CaseOptions& options = {});

/// Largest difference over the largest expected size. Equal infinities and NaN on both sides count
/// as no difference; any other NaN gives NaN, another shape infinity.
double case_error(const at::Tensor& got, const at::Tensor& expected);

}  // namespace fovea
