// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/item_log.h"

#include <algorithm>
#include <map>

#include "fovea/base/error.h"
#include "fovea/base/paths.h"
#include "fovea/text/result_json.h"

namespace fovea {
template <class V>
void describe(V& v, ItemRecord& r) {
  v("index", r.score.index);
  v("question", r.question);
  v.optional("group", r.score.group, !r.score.group.empty());
  v.optional("axes", r.score.axes, !r.score.axes.empty());
  v("scores", r.score.values);
  v.optional("refused", r.refused, !r.refused.empty());
  v.optional("context_cut", r.context_cut, r.context_cut);
  v.optional("answer", r.answer, !r.answer.empty());
}

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "fovea_task_log";

/// The log and the bytes of its whole lines.
struct ReadLog {
  ItemLog log;
  size_t whole = 0;
};

ReadLog read_log(const fs::path& path) {
  const std::string text = read_file(path), name = path.filename().string();
  ReadLog read;
  int64_t number = 1;
  std::map<int64_t, ItemRecord> by_index;
  for (size_t end; (end = text.find('\n', read.whole)) != std::string::npos; ++number) {
    const std::string place = fmt::format("{}:{}", name, number);
    try {
      const Json line = Json::parse(std::string_view(text).substr(read.whole, end - read.whole));
      if (number == 1) {
        require<InputError>(line.contains(kFormat), place,
                            "expected the log of a task; got another file; choose another --out");
        read.log.header = line;
      } else {
        ItemRecord record;
        read_result<InputError>(line, place, record);
        by_index.insert_or_assign(record.score.index, std::move(record));
      }
    } catch (const nlohmann::json::exception& error) {
      fail<InputError>(place,
                       "expected a line of a task's log; got none ({}); remove the file to "
                       "start anew",
                       error.what());
    }
    read.whole = end + 1;
  }
  for (auto& [index, record] : by_index) read.log.records.push_back(std::move(record));
  return read;
}

}  // namespace

Json ItemRecord::to_json() const { return described_json(*this); }

ItemLog read_item_log(const fs::path& path) { return read_log(path).log; }

ItemLogWriter::ItemLogWriter(const fs::path& path, const Json& header) : path_(path) {
  Json first{{kFormat, 1}};
  first.update(header);
  const std::string begin = first.dump() + "\n";
  if (path.has_parent_path()) make_folders(path.parent_path());
  if (path_exists(path)) {
    ReadLog read = read_log(path);
    require<InputError>(!read.log.header.is_null() || begin.starts_with(read_file(path)),
                        path.string(),
                        "expected the log of a task; got another file; choose another --out");
    if (!read.log.header.is_null()) {
      for (const auto& [key, value] : first.items()) {
        const Json found = read.log.header.value(key, Json());
        require<InputError>(found == value, path.string(),
                            "expected a log with {} {}; got {}; choose another --out, or remove "
                            "the file to start anew",
                            key, value.dump(), found.dump());
      }
      earlier_ = std::move(read.log.records);
      fs::resize_file(path, read.whole);
      file_.emplace(path, OutputFile::Mode::append);
      return;
    }
  }
  file_.emplace(path);
  file_->write(begin);
  file_->sync();
}

void ItemLogWriter::add(const ItemRecord& record) { file_->write(record.to_json().dump() + "\n"); }

void ItemLogWriter::finish() {
  file_->sync();
  file_->close();
  const ItemLog log = read_item_log(path_);
  write_file(path_, [&](OutputFile& out) {
    out.write(log.header.dump() + "\n");
    for (const ItemRecord& record : log.records) out.write(record.to_json().dump() + "\n");
  });
}

}  // namespace fovea
