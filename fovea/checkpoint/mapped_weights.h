// Maps weight files into memory, without a torch header.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>

#include "fovea/base/files.h"

namespace fovea {

/// Maps a file of weights. CheckpointError where it cannot be.
std::shared_ptr<const MappedFile> map_weights(const std::filesystem::path& path);
/// Lets go of the memory of a mapped file.
void release_pages(const MappedFile& file);

}  // namespace fovea
