// state.json of a checkpoint: step and state of the run, and size and checksum of every file, its
// own included.
//
// The checksum of state.json itself covers all its bytes, with sixteen zeros in its own place. A
// file of format 1 has none: it is read with a warning.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace fovea {

/// Takes sentences about what was mended or could not be checked; callers show them to people.
using WarningSink = std::function<void(std::string_view)>;

/// The contents of state.json.
struct CheckpointState {
  int64_t step = 0;
  nlohmann::ordered_json files;  ///< {"model.safetensors": {"bytes", "checksum"}, ...}
  nlohmann::ordered_json state;  ///< what save_checkpoint() was given
};

constexpr const char* kStateFile = "state.json";

/// The step that a folder's name says ("0000001000"); nothing for other names.
std::optional<int64_t> step_of_name(std::string_view name);

/// Writes state.json of a checkpoint whose other files are all in `folder`. IoError.
void write_checkpoint_state(const std::filesystem::path& folder, int64_t step,
                            const nlohmann::ordered_json& state);

/// Reads state.json alone and checks it: its checksum, its format, and that the step agrees with
/// the folder's name. It must have an entry for every file that a reader of the model could use.
/// CheckpointError.
CheckpointState read_checkpoint_state(const std::filesystem::path& folder,
                                      const WarningSink& warn = {});

/// Compares one file with its entry. CheckpointError where it is missing, truncated or changed.
void check_listed_file(const std::filesystem::path& folder, const std::string& name,
                       const nlohmann::ordered_json& expected);

}  // namespace fovea
