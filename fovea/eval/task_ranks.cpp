// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/task_ranks.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/runtime/worker_error.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;
using Texts = std::vector<std::string>;

/// The text of each rank, on all of them.
Texts texts_of_all(Communicator& ranks, const std::string& own) {
  std::vector<double> lengths(static_cast<size_t>(ranks.size()), 0.0);
  lengths[static_cast<size_t>(ranks.rank())] = static_cast<double>(own.size());
  ranks.sum(lengths);
  const at::Tensor bytes = at::empty({static_cast<int64_t>(own.size())}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), own.data(), own.size());
  const at::Tensor all = ranks.gather_rows(bytes);
  const char* next = static_cast<const char*>(all.const_data_ptr());
  Texts texts;
  for (const double length : lengths) {
    texts.emplace_back(next, static_cast<size_t>(length));
    next += static_cast<size_t>(length);
  }
  return texts;
}

/// The answer, or the line that tells an error.
std::string answer_or_error(TaskPartAnswerer& answerer, const std::string& part) {
  if (part.empty()) return "";
  try {
    return answerer.answer(part);
  } catch (const Error& error) {
    return worker_error_line(error);
  }
}

/// Parts that rank 0 sends, one a rank or fewer; nothing ends the ranks.
Json send_parts(Communicator& ranks, const Json& parts) {
  return Json::parse(texts_of_all(ranks, ranks.is_first() ? parts.dump() : "").front());
}

/// The answers of a round to `parts`.
Texts answer_round(Communicator& ranks, const Json& parts, TaskPartAnswerer& answerer) {
  const auto own = static_cast<size_t>(ranks.rank());
  const std::string part = own < parts.size() ? parts[own].get<std::string>() : "";
  return texts_of_all(ranks, answer_or_error(answerer, part));
}

}  // namespace

TaskRanks::~TaskRanks() {
  try {
    send_parts(ranks_, Json::array());
  } catch (const std::exception&) {
    // The others have gone; who threw says why.
  }
}

void TaskRanks::ask(std::string name, const Json& part, Answered answered) {
  waiting_.push_back({std::move(name), part.dump(), std::move(answered)});
}

void TaskRanks::step() {
  if (waiting_.empty()) return;
  const auto count = std::min(std::ssize(waiting_), static_cast<std::ptrdiff_t>(ranks_.size()));
  std::vector<Part> round;
  Json parts = Json::array();
  for (std::ptrdiff_t n = 0; n < count; ++n) {
    round.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    parts.push_back(round.back().text);
  }
  send_parts(ranks_, parts);
  const Texts answers = answer_round(ranks_, parts, own_);
  for (size_t n = 0; n < round.size(); ++n) {
    const Json answer = Json::parse(answers[n]);
    if (answer.contains("error"))
      throw_worker_error(answer, fmt::format("[eval] in '{}': ", round[n].name));
    round[n].answered(answer);
  }
}

void answer_on_rank(Communicator& ranks, TaskPartAnswerer& answerer) {
  for (;;) {
    const Json parts = send_parts(ranks, Json());
    if (parts.empty()) return;
    answer_round(ranks, parts, answerer);
  }
}

}  // namespace fovea
