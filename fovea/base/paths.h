// Paths: what stands at one, and which names may become one.
//
// The system cannot look at a loop of links, a name over 255 bytes or with a NUL, or without
// permission. Questions then throw InputError with the path, the system's message and the remedy.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace fovea {

/// Reason why `name` cannot name a file or folder inside one that the program chose, or empty. It
/// leaves room for endings: at most 200 bytes.
std::string why_no_file_name(std::string_view name);

/// Anything stands there; links are followed, and a link to nothing is nothing.
bool path_exists(const std::filesystem::path& path);
/// A regular file stands there.
bool is_file(const std::filesystem::path& path);
bool is_folder(const std::filesystem::path& path);

/// The paths of all entries of a folder, sorted. InputError where it cannot be read.
std::vector<std::filesystem::path> folder_entries(const std::filesystem::path& folder);

/// One file or folder stands at both paths, whatever links lead there.
bool same_place(const std::filesystem::path& a, const std::filesystem::path& b);

/// The remedy for a refusal of the system (errno), as the end of an error's message.
std::string_view remedy_of(int error);

}  // namespace fovea
