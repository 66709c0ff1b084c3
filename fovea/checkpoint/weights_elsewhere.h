// Reading and writing models whose weights are not all in this process's memory (training on
// several ranks).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "fovea/checkpoint/safetensors.h"
#include "fovea/nn/transformer.h"
#include "fovea/text/tokenizer.h"

namespace fovea {

/// The numbers of a tensor at the time at which they are written; `given` has their shape and
/// dtype, and is the result where it has the numbers too.
using TensorFetch = std::function<at::Tensor(const std::string& name, const at::Tensor& given)>;

/// write_safetensors() that holds one fetched tensor at a time.
void write_fetched(const std::filesystem::path& path, const TensorMap& tensors,
                   const TextMap& metadata, const TensorFetch& fetch);
/// write_weights() of one file in the same way.
void write_fetched_weights(const std::filesystem::path& folder, const TensorMap& tensors,
                           const TensorFetch& fetch);

/// save_model() of a checkpoint (SaveOptions::exact), whose parameters are fetched by their names.
void save_fetched_model(const std::filesystem::path& folder, const Transformer& model,
                        const Tokenizer& tokenizer, const TensorFetch& fetch);

/// Gives a parameter the numbers of a file. Returns them as they are held now.
using ParameterSetter = std::function<at::Tensor(Parameter& parameter, const at::Tensor& stored)>;

/// load_weights() that hands the numbers over. Added parameters that the file lacks are returned,
/// not drawn.
std::vector<std::string> read_weights_into(const std::filesystem::path& folder, Transformer& model,
                                           const ParameterSetter& set);

}  // namespace fovea
