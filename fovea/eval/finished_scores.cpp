// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/finished_scores.h"

#include <algorithm>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/base/paths.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const FinishedScore& finished) {
  const SideBySideScore& s = finished.score;
  Json json{{"length", s.length}, {"window", s.window}, {"perplexity", s.perplexity},
            {"copy", s.copy},     {"needle", s.needle}, {"windows", Json::array()}};
  if (s.pairs) json["pairs"] = *s.pairs;
  if (s.bytes_read) json["bytes_read"] = *s.bytes_read;
  if (s.speed)
    json["speed"] = {s.speed->prompt, s.speed->prompt_rate, s.speed->rate, s.speed->path};
  for (const WindowScore& w : finished.windows) json["windows"].push_back({w.nll, w.tokens});
  return json;
}

FinishedScore from_json(const Json& json) {
  FinishedScore finished;
  SideBySideScore& s = finished.score;
  s.length = json.at("length"), s.window = json.at("window");
  s.perplexity = json.at("perplexity"), s.copy = json.at("copy"), s.needle = json.at("needle");
  if (json.contains("pairs")) s.pairs = json["pairs"].get<double>();
  if (json.contains("bytes_read")) s.bytes_read = json["bytes_read"].get<double>();
  if (const auto speed = json.find("speed"); speed != json.end())
    s.speed = DecodeSpeed{speed->at(0), speed->at(1), speed->at(2), speed->at(3)};
  for (const Json& w : json.at("windows")) finished.windows.push_back({w.at(0), w.at(1)});
  return finished;
}

}  // namespace

FinishedScores::FinishedScores(std::filesystem::path file) : file_(std::move(file)) {
  if (file_.empty() || !path_exists(file_)) return;
  try {
    const Json list = Json::parse(read_file(file_));
    for (const Json& entry : list)
      entries_.push_back({entry.at("asked"), from_json(entry.at("score"))});
  } catch (const Json::exception&) {
    entries_.clear();
  }
}

const FinishedScore* FinishedScores::find(const Json& asked) const {
  const auto found = std::ranges::find(entries_, asked, &Entry::asked);
  return found == entries_.end() ? nullptr : &found->score;
}

void FinishedScores::keep(const Json& asked, const FinishedScore& score) {
  if (file_.empty()) return;
  entries_.push_back({asked, score});
  Json list = Json::array();
  for (const Entry& entry : entries_)
    list.push_back({{"asked", entry.asked}, {"score", to_json(entry.score)}});
  write_file(file_, list.dump(1) + "\n");
}

void FinishedScores::remove() {
  std::error_code error;
  if (!file_.empty()) std::filesystem::remove(file_, error);
}

}  // namespace fovea
