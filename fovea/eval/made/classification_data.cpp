// Readers of banking77, CLINC150 and TREC.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/base/json_depth.h"
#include "fovea/data/records.h"
#include "fovea/eval/made/classification.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// A text with its label in words, and its place for errors.
struct RawText {
  std::string text, label, place;
};

std::vector<LabelledText> numbered(const std::vector<RawText>& raw,
                                   const std::map<std::string, int64_t>& numbers) {
  std::vector<LabelledText> texts;
  for (const RawText& r : raw) {
    const auto found = numbers.find(r.label);
    require<InputError>(found != numbers.end(), r.place,
                        "expected a label of the training texts; got '{}'", r.label);
    texts.push_back({r.text, found->second});
  }
  return texts;
}

ClassificationSet make_set(std::string name, const std::vector<RawText>& train,
                           const std::vector<RawText>& test) {
  std::map<std::string, int64_t> numbers;
  for (const RawText& r : train) numbers.emplace(r.label, 0);
  ClassificationSet set{.name = std::move(name), .labels = {}, .train = {}, .test = {}};
  for (auto& [label, number] : numbers) {
    number = std::ssize(set.labels);
    set.labels.push_back(label);
  }
  require<InputError>(set.labels.size() >= 2 && !test.empty(), set.name,
                      "expected training texts of two labels and a test text; got {} labels and {} "
                      "texts",
                      set.labels.size(), test.size());
  set.train = numbered(train, numbers);
  set.test = numbered(test, numbers);
  return set;
}

std::vector<RawText> read_table(const fs::path& path) {
  const RecordFile file(path);
  std::vector<RawText> texts;
  for (int64_t n = 0; n < file.size(); ++n) {
    const Json record = file.record(n);
    require<InputError>(record.contains("text") && record.contains("category"), file.place(n),
                        "expected the columns 'text' and 'category'; got others");
    texts.push_back(
        {record["text"].get<std::string>(), record["category"].get<std::string>(), file.place(n)});
  }
  return texts;
}

void append_list(const Json& file, const std::string& list, const std::string& name,
                 std::vector<RawText>& texts) {
  const auto found = file.find(list);
  require<InputError>(found != file.end() && found->is_array(), name,
                      "expected a list '{}' of [text, intent]; got none", list);
  int64_t number = 0;
  for (const Json& entry : *found) {
    std::string place = fmt::format("{}, {} entry {}", name, list, ++number);
    require<InputError>(
        entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string(),
        place, "expected [text, intent]; got {}", entry.type_name());
    texts.push_back({entry[0].get<std::string>(), entry[1].get<std::string>(), std::move(place)});
  }
}

std::vector<RawText> read_labelled_lines(const fs::path& path, TrecLabels labels) {
  const std::string text = read_file(path), name = path.filename().string();
  std::vector<RawText> texts;
  int64_t number = 1;
  for (size_t begin = 0; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    std::string place = fmt::format("{}:{}", name, number);
    const size_t space = line.find(' '), colon = line.find(':');
    require<InputError>(colon < space && space != std::string_view::npos && space + 1 < line.size(),
                        place, "expected 'COARSE:fine question'; got '{}'", line.substr(0, 60));
    texts.push_back({std::string(line.substr(space + 1)),
                     std::string(line.substr(0, labels == TrecLabels::coarse ? colon : space)),
                     std::move(place)});
  }
  return texts;
}

}  // namespace

ClassificationSet read_banking77(const fs::path& folder) {
  const std::vector<RawText> train = read_table(folder / "train.csv"),
                             test = read_table(folder / "test.csv");
  return make_set("banking77", train, test);
}

ClassificationSet read_clinc150(const fs::path& folder) {
  const fs::path path = folder / "data_full.json";
  const std::string name = path.filename().string();
  const std::string text = read_file(path);
  require_shallow_json<InputError>(text, name);
  const Json file = Json::parse(text, nullptr, false);
  require<InputError>(file.is_object(), name, "expected a JSON object; got {}",
                      file.is_discarded() ? "no JSON" : file.type_name());
  std::vector<RawText> train, test;
  for (const char* list : {"train", "oos_train"}) append_list(file, list, name, train);
  for (const char* list : {"val", "oos_val"}) append_list(file, list, name, test);
  return make_set("clinc150", train, test);
}

ClassificationSet read_trec(const fs::path& folder, TrecLabels labels) {
  const std::vector<RawText> train = read_labelled_lines(folder / "TREC.train.label", labels),
                             test = read_labelled_lines(folder / "TREC.test.label", labels);
  return make_set(labels == TrecLabels::coarse ? "trec_coarse" : "trec_fine", train, test);
}

}  // namespace fovea
