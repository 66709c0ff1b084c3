// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/base/paths.h"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "fovea/base/error.h"
#include "fovea/base/printable.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;

// File systems take 255; endings (".jsonl") and the marks of temporaries come on top.
constexpr size_t kLongestFileName = 200;

fs::file_status status_of(const fs::path& path) {
  require<InputError>(path.native().find('\0') == std::string::npos, "file",
                      "expected a path without a NUL character; got '{}'",
                      printable_line(path.native()));
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() != fs::file_type::none) return status;
  fail<InputError>("file", "cannot look at '{}': {}; {}", path.string(), error.message(),
                   remedy_of(error.value()));
}

}  // namespace

std::string_view remedy_of(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "free space on that disk (`df -h`) or choose another folder";
    case EROFS:
      return "the file system is read-only: choose another folder";
    case EACCES:
    case EPERM:
      return "check the permissions (`ls -ld`) or choose another folder";
    case ENOENT:
      return "check the path";
    case ELOOP:
      return "its links lead in a circle (`ls -l`): name the place itself";
    case ENAMETOOLONG:
      return "a name may have 255 bytes: was a text given where a path is expected?";
    case EFBIG:
      return "a file may not grow further: raise the limit (`ulimit -f`) or choose another disk";
    case EISDIR:
    case ENOTDIR:
      return "a folder stands where a file is expected, or the other way round";
    default:
      return "check the disk and the path";
  }
}

std::string why_no_file_name(std::string_view name) {
  if (name.empty()) return "it is empty";
  if (name.front() == '.') return "it begins with '.'";
  if (name.find_first_of("/\\") != std::string_view::npos) return "it has a '/' or '\\'";
  if (printable_line(name) != name) return "it has control characters, or is no UTF-8";
  if (name.size() > kLongestFileName)
    return fmt::format("it has {} bytes, at most {} are taken", name.size(), kLongestFileName);
  return "";
}

bool path_exists(const fs::path& path) { return fs::exists(status_of(path)); }
bool is_file(const fs::path& path) { return fs::is_regular_file(status_of(path)); }
bool is_folder(const fs::path& path) { return fs::is_directory(status_of(path)); }

std::vector<fs::path> folder_entries(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    entries.push_back(it->path());
  if (error)
    fail<InputError>("file", "cannot read the folder '{}': {}; {}", folder.string(),
                     error.message(), remedy_of(error.value()));
  std::ranges::sort(entries);
  return entries;
}

bool same_place(const fs::path& a, const fs::path& b) {
  return path_exists(a) && path_exists(b) && fs::equivalent(a, b);
}

}  // namespace fovea
