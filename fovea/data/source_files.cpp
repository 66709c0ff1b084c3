// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/data/source_files.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "fovea/base/error.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;

int64_t nanoseconds(const timespec& time) {
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

std::string_view without_compression(std::string_view name) {
  for (const std::string_view ending : {".gz", ".zst"}) {
    if (name.ends_with(ending)) name.remove_suffix(ending.size());
  }
  return name;
}

SourceFile source_file(const fs::path& path, const struct stat& info, bool named) {
  const std::string name = path.filename().string();
  return {.path = path,
          .format =
              without_compression(name).ends_with(".jsonl") ? FileFormat::jsonl : FileFormat::text,
          .named = named,
          .size = info.st_size,
          .modified = nanoseconds(info.st_mtim),
          .changed = nanoseconds(info.st_ctim)};
}

std::vector<std::string> entries(const fs::path& folder) {
  DIR* handle = ::opendir(folder.c_str());
  if (handle == nullptr) {
    fail<InputError>(folder.string(),
                     "cannot read the folder: {}; check its permissions (`ls -ld`)",
                     std::strerror(errno));
  }
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(handle)) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  ::closedir(handle);
  std::sort(names.begin(), names.end());
  return names;
}

class Walk {
 public:
  explicit Walk(std::vector<std::string> include) : include_(std::move(include)) {}

  void folder(const fs::path& path, const struct stat& info) {
    if (!seen_.emplace(info.st_dev, info.st_ino).second) return;
    for (const std::string& name : entries(path)) {
      const fs::path child = path / name;
      struct stat about {};
      if (::stat(child.c_str(), &about) != 0) {
        if (errno != ENOENT && errno != ELOOP) {
          fail<InputError>(child.string(), "cannot read: {}; check the permissions",
                           std::strerror(errno));
        }
        ++listing.broken_links;
      } else if (S_ISDIR(about.st_mode)) {
        folder(child, about);
      } else if (S_ISREG(about.st_mode)) {
        if (is_included(name)) {
          listing.files.push_back(source_file(child, about, false));
        } else {
          ++listing.unlisted;
        }
      }
    }
  }

  SourceListing listing;

 private:
  bool is_included(std::string_view name) const {
    return include_.empty() ||
           std::any_of(include_.begin(), include_.end(), [&](const std::string& ending) {
             return name.ends_with(ending) || without_compression(name).ends_with(ending);
           });
  }

  std::vector<std::string> include_;
  std::set<std::pair<dev_t, ino_t>> seen_;  // folders
};

}  // namespace

SourceListing list_source_files(const DataSource& source) {
  const fs::path path = fs::absolute(resolve_source_path(source.path)).lexically_normal();
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    fail<InputError>(path.string(),
                     "expected a text file or folder (source '{}'); got: {}; check data.sources",
                     source_name(source), std::strerror(errno));
  }
  if (!S_ISDIR(info.st_mode)) {
    require<InputError>(
        S_ISREG(info.st_mode), path.string(),
        "expected a text file or folder (source '{}'); got a device, pipe or socket",
        source_name(source));
    return {.files = {source_file(path, info, true)}};
  }
  const bool python = source.include.empty() && is_torch_python(source.path);
  Walk walk(python ? std::vector<std::string>{".py"} : source.include);
  walk.folder(path, info);
  require<InputError>(!walk.listing.files.empty(), path.string(),
                      "expected text files in the folder (source '{}'); found none, {} files left "
                      "out by 'include' [{}]; "
                      "add text, or widen data.sources.N.include",
                      source_name(source), walk.listing.unlisted, fmt::join(source.include, ", "));
  return std::move(walk.listing);
}

}  // namespace fovea
