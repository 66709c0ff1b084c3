// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/data/config.h"

#include <array>
#include <cstdlib>
#include <set>

#include "fovea/base/error.h"
#include "fovea/config/reader.h"
#include "fovea/data/source_files.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTorchPython = "torch-python";
constexpr std::string_view kTorchVariable = "TORCH_PYTHON";

std::string variable(const std::string& name, std::string_view path) {
  const char* value = std::getenv(name.c_str());
  if (value != nullptr && *value != '\0') return value;
  if (name == kTorchVariable) return FOVEA_TORCH_DIR;
  fail<ConfigError>(
      "data",
      "expected the environment variable {} for the source '{}'; it is not set; set it, or write "
      "the path itself",
      name, path);
}

}  // namespace

std::span<const std::string_view> enum_names(BadLines) {
  static constexpr std::array<std::string_view, 2> names{"fail", "skip"};
  return names;
}

std::span<const std::string_view> enum_names(InvalidUtf8) {
  static constexpr std::array<std::string_view, 3> names{"fail", "skip", "replace"};
  return names;
}

void DataSource::describe(FieldVisitor& v) {
  v.text({"path",
          "text file, folder or .jsonl, each also .gz or .zst; torch-python; find-the-block:...; "
          "${NAME} from the environment"},
         path);
  v.real(
      {"weight",
       "share of the training rows, relative to the other sources; remove a source to leave it out",
       ranges::kPositive},
      weight);
  v.text({"name", "name in metrics and tables; empty = from the path"}, name);
  v.text({"field", "JSONL: the key that holds the text"}, field);
  v.integer(
      {"scored_tail", "above 0: only the last so many tokens of a document are learned and scored",
       ranges::kPositionCounts},
      scored_tail);
  v.texts(
      {"include", "folders: endings of the files to take, as [.py, .md]; empty = every text file"},
      include);
}

void DataConfig::describe(FieldVisitor& v) {
  v.nested_list({"sources", "where the text comes from"}, sources);
  v.real({"validation_fraction",
          "share of the documents kept for validation, in (0, 0.5]",
          {1e-9, 0.5}},
         validation_fraction);
  v.integer(
      {"validation_tokens", "most tokens of each source that one evaluation reads", {1, 1e15}},
      validation_tokens);
  v.integer({"seed", "seed of the split into train and validation", ranges::kSeeds}, seed);
  v.choice({"bad_lines", "a JSONL line without usable text: stop, or skip and count it"},
           bad_lines);
  v.choice({"invalid_utf8", "a document that is not UTF-8: stop, skip and count it, or put U+FFFD"},
           invalid_utf8);
  v.text({"cache", "folder of the token files; empty = $FOVEA_CACHE/data"}, cache);
}

void DataConfig::check() const {
  check_fields("data", *this, "data");
  require<ConfigError>(!sources.empty(), "data",
                       "expected at least one entry in data.sources; got none; "
                       "add '- path: FILE_OR_FOLDER'");
  std::set<std::string> names;
  for (size_t i = 0; i < sources.size(); ++i) {
    const DataSource& source = sources[i];
    require<ConfigError>(!source.path.empty(), "data",
                         "data.sources.{}.path is empty; name a file or folder", i);
    require<ConfigError>(
        names.insert(source_name(source)).second, "data",
        "data.sources.{} has the name '{}' of another source; give each its own 'name'", i,
        source_name(source));
  }
}

fs::path resolve_source_path(std::string_view path) {
  std::string out;
  std::string_view rest = path == kTorchPython ? std::string_view("${TORCH_PYTHON}") : path;
  if (rest == "~" || rest.substr(0, 2) == "~/") {
    out = variable("HOME", path);
    rest.remove_prefix(1);
  }
  for (;;) {
    const size_t open = rest.find("${"), close = rest.find('}', open);
    if (open == rest.npos || close == rest.npos) break;
    out.append(rest.substr(0, open));
    out.append(variable(std::string(rest.substr(open + 2, close - open - 2)), path));
    rest.remove_prefix(close + 1);
  }
  return out.append(rest);
}

bool is_torch_python(std::string_view path) {
  return path == kTorchPython || path == "${TORCH_PYTHON}";
}

std::string source_name(const DataSource& source) {
  if (!source.name.empty()) return source.name;
  if (is_torch_python(source.path)) return std::string(kTorchPython);
  std::string_view path = source.path;
  while (!path.empty() && path.back() == '/') path.remove_suffix(1);
  std::string name = fs::path(path).filename().string();
  for (const std::string_view ending : {".gz", ".zst", ".jsonl", ".txt"}) {
    if (name.size() > ending.size() && name.ends_with(ending))
      name.erase(name.size() - ending.size());
  }
  std::erase_if(name,
                [](char c) { return std::string_view("${}").find(c) != std::string_view::npos; });
  return name.empty() || name == "." || name == ".." ? "text" : name;
}

fs::path default_data_cache() {
  const auto set = [](const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr ? fs::path(value) : fs::path();
  };
  if (const fs::path cache = set("FOVEA_CACHE"); !cache.empty()) return cache / "data";
  if (const fs::path cache = set("XDG_CACHE_HOME"); !cache.empty()) return cache / "fovea" / "data";
  if (const fs::path home = set("HOME"); !home.empty()) return home / ".cache" / "fovea" / "data";
  return fs::temp_directory_path() / "fovea" / "data";
}

}  // namespace fovea
