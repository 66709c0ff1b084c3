// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/checkpoint_state.h"

#include <algorithm>
#include <fstream>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/base/paths.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kFormat = 2;
constexpr int kFormatWithoutChecksum = 1;
constexpr size_t kFewestDigits = 10, kMostDigits = 18;
// The first bytes of the file; the checksum follows.
constexpr std::string_view kBegin = "{\n  \"checksum\": \"";
constexpr std::string_view kZeros = "0000000000000000";

/// In parts, not through a map: mapped pages would count as memory of the run.
std::string checksum(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string part(1 << 20, '\0');
  uint64_t sum = 0;
  while (file) {
    file.read(part.data(), static_cast<std::streamsize>(part.size()));
    sum = fingerprint(std::string_view(part.data(), static_cast<size_t>(file.gcount())), sum);
  }
  require<IoError>(file.eof() && !file.bad(), "file", "cannot read '{}'; check the disk",
                   path.string());
  return hex64(sum);
}

/// All files of a folder but state.json, sorted.
std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  for (fs::path& path : folder_entries(folder))
    if (path.filename() != kStateFile) files.push_back(std::move(path));
  return files;
}

Json file_table(const fs::path& folder) {
  Json table = Json::object();
  for (const fs::path& file : files_of(folder)) {
    table[file.filename().string()] = {{"bytes", fs::file_size(file)},
                                       {"checksum", checksum(file)}};
  }
  return table;
}

/// Whether the bytes are those that write_checkpoint_state() wrote; nothing where they hold no
/// checksum in its place.
std::optional<bool> agrees_with_its_checksum(std::string text) {
  if (!text.starts_with(kBegin) || text.size() < kBegin.size() + kZeros.size()) {
    return std::nullopt;
  }
  const std::string written = text.substr(kBegin.size(), kZeros.size());
  text.replace(kBegin.size(), kZeros.size(), kZeros);
  return hex64(fingerprint(text)) == written;
}

/// An empty table would check nothing, and a file beside it would be read unchecked.
void check_table(const fs::path& folder, const Json& files) {
  require<CheckpointError>(files.is_object() && !files.empty(), folder.string(),
                           "state.json lists no files: it is damaged");
  for (const auto& [name, unused] : files.items()) {
    const std::string why = why_no_file_name(name);
    require<CheckpointError>(why.empty(), folder.string(), "'{}' in state.json is no file name: {}",
                             name, why);
  }
  for (const fs::path& file : files_of(folder)) {
    const std::string extension = file.extension().string();
    if (extension != ".json" && extension != ".safetensors") continue;
    const std::string name = file.filename().string();
    require<CheckpointError>(files.contains(name), folder.string(),
                             "the file '{}' is not listed in state.json, so it cannot be checked",
                             name);
  }
}

Json parse_state(const fs::path& folder, const WarningSink& warn) {
  const fs::path path = folder / kStateFile;
  require<CheckpointError>(path_exists(path), folder.string(), "the file 'state.json' is missing");
  const std::string text = read_file(path);
  const std::optional<bool> agrees = agrees_with_its_checksum(text);
  require<CheckpointError>(agrees.value_or(true), folder.string(),
                           "the content of 'state.json' is not what was written");
  Json whole = Json::parse(text);
  const int format = whole.at("format").get<int>();
  const bool old = format == kFormatWithoutChecksum && !agrees && !whole.contains("checksum");
  require<CheckpointError>(old || format != kFormat || agrees, folder.string(),
                           "the content of 'state.json' is not what was written");
  require<CheckpointError>(old || format == kFormat, folder.string(),
                           "state.json must have format {}; got {}: another version of Fovea "
                           "wrote it",
                           kFormat, format);
  if (old && warn) {
    warn(
        fmt::format("[{}] an older version wrote state.json, without a checksum of itself: "
                    "changed numbers in it cannot be noticed",
                    folder.string()));
  }
  return whole;
}

}  // namespace

std::optional<int64_t> step_of_name(std::string_view name) {
  const bool digits = name.size() >= kFewestDigits && name.size() <= kMostDigits &&
                      std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; });
  if (!digits) return std::nullopt;
  return std::stoll(std::string(name));
}

void write_checkpoint_state(const fs::path& folder, int64_t step, const Json& state) {
  const Json whole = {{"checksum", kZeros},
                      {"format", kFormat},
                      {"step", step},
                      {"files", file_table(folder)},
                      {"state", state}};
  std::string text = whole.dump(2) + "\n";
  text.replace(kBegin.size(), kZeros.size(), hex64(fingerprint(text)));
  write_file(folder / kStateFile, text);
}

CheckpointState read_checkpoint_state(const fs::path& folder, const WarningSink& warn) {
  try {
    Json whole = parse_state(folder, warn);
    CheckpointState read{.step = whole.at("step").get<int64_t>(),
                         .files = std::move(whole.at("files")),
                         .state = std::move(whole.at("state"))};
    const fs::path without_slash = folder.has_filename() ? folder : folder.parent_path();
    const std::optional<int64_t> named = step_of_name(without_slash.filename().string());
    require<CheckpointError>(named.value_or(read.step) == read.step, folder.string(),
                             "state.json must be of step {}, as its folder; got {}",
                             named.value_or(0), read.step);
    check_table(folder, read.files);
    return read;
  } catch (const Json::exception& error) {
    fail<CheckpointError>(folder.string(), "state.json is damaged: {}", error.what());
  } catch (const InputError& error) {  // a file that cannot be read
    throw CheckpointError(error.what());
  }
}

void check_listed_file(const fs::path& folder, const std::string& name, const Json& expected) try {
  const fs::path path = folder / name;
  std::error_code error;
  const uintmax_t size = fs::file_size(path, error);
  if (error) fail<CheckpointError>(folder.string(), "the file '{}' is missing", name);
  const auto bytes = expected.at("bytes").get<uintmax_t>();
  if (size != bytes) {
    fail<CheckpointError>(folder.string(), "the file '{}' must have {} bytes; it has {}", name,
                          bytes, size);
  }
  if (checksum(path) != expected.at("checksum").get<std::string>()) {
    fail<CheckpointError>(folder.string(), "the content of '{}' is not what was written", name);
  }
} catch (const Json::exception& error) {
  fail<CheckpointError>(folder.string(), "the entry of '{}' in state.json is damaged: {}", name,
                        error.what());
}

}  // namespace fovea
