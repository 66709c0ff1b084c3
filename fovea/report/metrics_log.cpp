// Reading, appending to and cutting metrics.jsonl.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/metrics_log.h"

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "fovea/base/error.h"
#include "fovea/base/paths.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

// A record begins so; what a kill left of one is a part of it.
constexpr std::string_view kBegin = "{\"global_step\"";
constexpr ReadLimit kLargestLog{"a log of metrics", uint64_t{16} << 30};

/// Text up to and including the last newline: a record that follows was torn by a kill. InputError
/// where another text follows.
std::string_view whole_lines(std::string_view text, const std::filesystem::path& path) {
  const size_t end = text.rfind('\n') + 1;
  const std::string_view torn = text.substr(end);
  require<InputError>(torn.substr(0, kBegin.size()) == kBegin.substr(0, torn.size()), "metrics",
                      "expected the log of a run in '{}'; got another file; choose another run "
                      "folder",
                      path.string());
  return text.substr(0, end);
}

bool has_step(const Json& record) {
  const auto step = record.find("global_step");
  return step != record.end() && step->is_number_integer();
}

Json parse_line(std::string_view line, const std::filesystem::path& path, int64_t number) {
  Json record = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  require<InputError>(record.is_object() && has_step(record), "metrics",
                      "{}:{}: expected a JSON object with 'global_step'; remove or mend this line",
                      path.string(), number);
  return record;
}

/// Calls visit(record, line with its newline) for each line.
template <class Visit>
void for_each_line(std::string_view text, const std::filesystem::path& path, const Visit& visit) {
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t length = text.find('\n') + 1;
    const std::string_view line = text.substr(0, length);
    visit(parse_line(line.substr(0, length - 1), path, number), line);
    text.remove_prefix(length);
  }
}

const std::filesystem::path& without_torn_line(const std::filesystem::path& path) {
  if (!path_exists(path)) return path;
  const std::string text = read_file(path, kLargestLog);
  const std::string_view kept = whole_lines(text, path);
  if (kept.size() != text.size()) write_file(path, kept);
  return path;
}

}  // namespace

MetricsLog::MetricsLog(const std::filesystem::path& path)
    : file_(without_torn_line(path), OutputFile::Mode::append) {}

void MetricsLog::write(const Json& record) {
  constexpr auto kReplace = Json::error_handler_t::replace;
  if (!record.is_object() || !has_step(record)) {
    fail<InputError>("metrics", "expected an object with an integer 'global_step'; got {}",
                     record.dump(-1, ' ', false, kReplace));
  }
  // dump() writes numbers that are not finite as null, and repairs text instead of throwing in the
  // middle of a run.
  file_.write(record.dump(-1, ' ', false, kReplace) + "\n");
}

void MetricsLog::sync() { file_.sync(); }

std::vector<Json> read_metrics(const std::filesystem::path& path) {
  const std::string text = read_file(path, kLargestLog);
  std::vector<Json> records;
  for_each_line(whole_lines(text, path), path,
                [&](Json record, std::string_view) { records.push_back(std::move(record)); });
  return records;
}

void truncate_metrics(const std::filesystem::path& path, int64_t last_step) {
  if (!path_exists(path)) return;
  const std::string text = read_file(path, kLargestLog);
  std::string kept;
  for_each_line(whole_lines(text, path), path, [&](const Json& record, std::string_view line) {
    if (record["global_step"].get<int64_t>() <= last_step) kept += line;
  });
  if (kept != text) write_file(path, kept);
}

}  // namespace fovea
