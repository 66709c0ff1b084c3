// Finds out which kind of tokenizer a file or folder holds, and opens it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/base/json_depth.h"
#include "fovea/base/paths.h"
#include "fovea/text/json_tokenizer.h"
#include "fovea/text/sentencepiece_tokenizer.h"
#include "fovea/text/tiktoken.h"
#include "fovea/text/tokenizer.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;
using SortedJson = nlohmann::json;

constexpr ReadLimit kLargestTokenizer{"a tokenizer", 512 << 20};

/// The text of a mark: "</s>" or {"content": "</s>", ...}.
std::string mark_text(const SortedJson& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end()) return "";
  const SortedJson& text = found->is_object() ? found->value("content", *found) : *found;
  return text.is_string() ? text.get<std::string>() : "";
}

/// The object in a JSON file; nothing where there is none.
SortedJson object_in(const fs::path& path) {
  if (!is_file(path)) return {};
  const std::string text = read_file(path, kLargestTokenizer);
  require_shallow_json<InputError>(text, path.string());
  SortedJson object = SortedJson::parse(text, nullptr, false);
  return object.is_object() ? object : SortedJson();
}

/// Ids that end a text, of the generation_config.json beside a file, else of the config.json: one
/// or a list.
std::vector<int32_t> ends_beside(const fs::path& file) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    const fs::path path = file.parent_path() / name;
    const SortedJson config = object_in(path);
    const auto found = config.find("eos_token_id");
    if (config.is_null() || found == config.end() || found->is_null()) continue;
    std::vector<int32_t> ends;
    for (const SortedJson& id : found->is_array() ? *found : SortedJson::array({*found})) {
      require<InputError>(
          id.is_number_integer() && id.get<double>() >= 0 && id.get<double>() < 1 << 30,
          path.string(),
          "expected 'eos_token_id' to be a token id or a list of them; got {}; correct the file",
          found->dump());
      ends.push_back(id.get<int32_t>());
    }
    return ends;
  }
  return {};
}

/// What the tokenizer_config.json beside a file says, and which ids end a text.
MarkNames marks_beside(const fs::path& file) {
  MarkNames marks{.ends = ends_beside(file)};
  const SortedJson config = object_in(file.parent_path() / "tokenizer_config.json");
  if (config.is_null()) return marks;
  marks.eos = mark_text(config, "eos_token");
  marks.pad = mark_text(config, "pad_token");
  const auto adds = config.find("add_bos_token");
  if (adds != config.end() && adds->is_boolean()) marks.adds_bos = adds->get<bool>();
  return marks;
}

std::shared_ptr<const Tokenizer> json_or_bytes(std::string text, const fs::path& file) {
  std::shared_ptr<const Tokenizer> bytes = byte_tokenizer();
  const std::string content = bytes->file().content;
  if (text == content) return bytes;
  // The same, laid out by another program; a vocabulary of bytes is small.
  if (text.size() < 2 * content.size()) {
    if (SortedJson::parse(text, nullptr, false) == SortedJson::parse(content)) return bytes;
  }
  return json_tokenizer(std::move(text), marks_beside(file), file.string());
}

}  // namespace

fs::path find_tokenizer_file(const fs::path& folder) {
  for (const char* name : {"tokenizer.json", "tokenizer.model"})
    if (is_file(folder / name)) return folder / name;
  std::vector<fs::path> ranks;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().extension() == ".tiktoken") ranks.push_back(entry.path());
  require<InputError>(ranks.size() < 2, folder.string(),
                      "expected one tokenizer; got {} files *.tiktoken; name one of them",
                      ranks.size());
  return ranks.empty() ? folder / "tokenizer.json" : ranks.front();
}

std::shared_ptr<const Tokenizer> load_tokenizer(const fs::path& path, std::string_view encoding) {
  const fs::path file = is_folder(path) ? find_tokenizer_file(path) : path;
  std::string text = read_file(file, kLargestTokenizer);
  const std::string where = file.string();
  if (looks_like_tiktoken(text))
    return json_tokenizer(tiktoken_json(text, encoding, where), marks_beside(file), where);
  require<InputError>(encoding.empty(), where,
                      "'{}' names an encoding of a tiktoken file, and this is none", encoding);
  const size_t start = text.find_first_not_of(" \t\r\n");
  const bool json = file.extension() == ".json" || start == std::string::npos || text[start] == '{';
  if (json) return json_or_bytes(std::move(text), file);
  // A SentencePiece model begins with its first piece.
  require<InputError>(text[0] == '\n', where,
                      "expected a tokenizer.json, a SentencePiece model or a tiktoken file; got a "
                      "file that is none of them");
  return sentencepiece_tokenizer(read_sentencepiece(text, where), marks_beside(file), where);
}

std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& name) {
  if (name == "bytes") return byte_tokenizer();
  const size_t colon = name.rfind(':');
  if (colon == std::string::npos || path_exists(name)) return load_tokenizer(name);
  return load_tokenizer(name.substr(0, colon), name.substr(colon + 1));
}

}  // namespace fovea
