// Case files of the parts around attention: rotary positions, Sinkhorn potentials, choice of
// groups, centroids that follow their clusters (format: docs/attention-case.md).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/checkpoint/attention_case.h"

namespace fovea {

/// The place that errors name, and the prefix of the expected tensors' names.
inline constexpr std::string_view kCaseWhere = "attention case", kExpectedPrefix = "expected_";

/// The part that a case file tests: its metadata `kind`, attention where there is none.
enum class CaseKind { attention, rope, sinkhorn, groups, centroids };
std::span<const std::string_view> enum_names(CaseKind);

/// InputError for an unknown kind.
CaseKind case_kind(const SafetensorsFile& file);

/// A tensor of a case, held in memory. InputError for number formats that attention does not
/// compute in: 8-bit floats, complex numbers, unsigned integers of more than 8 bits.
at::Tensor case_tensor(const SafetensorsFile& file, const std::string& name);

/// Computes the part that the file is of, with errors against its expected tensors, in the dtype of
/// the options. InputError naming the tensor that is missing, unknown or does not fit;
/// UnsupportedError for gradients and for paths, which parts do not have.
CaseResult run_part_case(const SafetensorsFile& file, const CaseOptions& options);

}  // namespace fovea
