// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "cli/prompts.h"

#include <algorithm>

#include "cli/options.h"
#include "fovea/base/error.h"
#include "fovea/config/reader.h"
#include "fovea/data/records.h"

namespace fovea::cli {
namespace {

using Json = nlohmann::ordered_json;

/// "a list of texts", "a number", "a text": what JSON must give for a key with this initial value.
std::string_view wanted_type(const Json& initial) {
  if (initial.is_array()) return "a list of texts";
  return initial.is_number() ? "a number" : initial.type_name();
}

bool has_wanted_type(const Json& value, const Json& initial) {
  if (initial.is_number()) return value.is_number();
  if (!initial.is_array()) return value.type() == initial.type();
  return value.is_array() &&
         std::all_of(value.begin(), value.end(), [](const Json& v) { return v.is_string(); });
}

/// JSON tells texts from numbers, which ConfigNode does not keep.
void require_types(const Json& line, const std::string& place, const GenerateOptions& defaults) {
  require<InputError>(line.is_object(), place,
                      "expected a JSON object with the key 'prompt'; got another value");
  require<InputError>(line.contains("prompt") && line["prompt"].is_string(), place,
                      "expected the key 'prompt' with text; got {}",
                      line.contains("prompt") ? line["prompt"].dump() : "no such key");
  const Json known = fields_to_json(defaults);
  for (const auto& [key, initial] : known.items()) {
    const auto given = line.find(key);
    require<InputError>(given == line.end() || has_wanted_type(*given, initial), place,
                        "expected '{}' to be {}; got {}", key, wanted_type(initial),
                        given == line.end() ? "" : given->dump());
  }
}

PromptLine parse_line(std::string_view line, const std::string& place,
                      const GenerateOptions& defaults) {
  ConfigNode node = parse_json(line, place);
  const Json json = Json::parse(line);
  require_types(json, place, defaults);
  PromptLine result{.request = {.prompt = json["prompt"].get<std::string>(), .options = defaults},
                    .id = json.value("id", Json())};
  std::erase_if(node.fields,
                [](const ConfigField& f) { return f.first == "prompt" || f.first == "id"; });
  node.place = place;
  read_fields(node, result.request.options);
  return result;
}

/// The sentence of an error that names another place, or none.
std::string_view without_place(std::string_view message) {
  const size_t end = message.starts_with('[') ? message.find("] ") : message.npos;
  return end == message.npos ? message : message.substr(end + 2);
}

/// A line of a file and where it stands.
struct PlacedLine {
  std::string text, place;
};

std::vector<PlacedLine> lines_of(const std::string& path) {
  const std::string text = read_input(path), name = path == "-" ? "stdin" : path;
  std::vector<PlacedLine> lines;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    lines.push_back({std::move(line), fmt::format("{}:{}", name, number)});
  }
  return lines;
}

/// Records as the lines of JSON that say the same.
std::vector<PlacedLine> lines_of(const RecordFile& file) {
  std::vector<PlacedLine> lines;
  for (int64_t n = 0; n < file.size(); ++n) lines.push_back({file.record(n).dump(), file.place(n)});
  return lines;
}

/// A table, a list or a compressed file, which data/records.h reads.
bool is_record_file(const std::string& path) {
  constexpr std::string_view endings[] = {".csv", ".tsv", ".json", ".gz", ".zst"};
  return std::ranges::any_of(endings, [&](std::string_view end) { return path.ends_with(end); });
}

}  // namespace

std::vector<PromptLine> read_prompts(const std::string& path, const GenerateOptions& defaults,
                                     const ContextOptions& context, const LoadedModel& loaded) {
  const bool plain = path.ends_with(".txt");
  std::vector<PromptLine> lines;
  for (PlacedLine& line : is_record_file(path) ? lines_of(RecordFile(path)) : lines_of(path)) {
    lines.push_back(
        plain ? PromptLine{.request = {.prompt = std::move(line.text), .options = defaults}}
              : parse_line(line.text, line.place, defaults));
    try {
      const TextRequest& request = lines.back().request;
      request.options.check();
      check_prompt(loaded.model, *loaded.tokenizer, request.prompt, context);
    } catch (const Error& error) {
      fail<InputError>(line.place, "{}", without_place(error.what()));
    }
  }
  require<InputError>(!lines.empty(), path, "expected at least one line with a prompt; got none");
  return lines;
}

std::vector<TextRequest> requests_of(const std::vector<PromptLine>& lines) {
  std::vector<TextRequest> requests;
  for (const PromptLine& line : lines) requests.push_back(line.request);
  return requests;
}

}  // namespace fovea::cli
