// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/data/records.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <span>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/base/json_depth.h"
#include "fovea/base/paths.h"
#include "fovea/data/byte_reader.h"
#include "fovea/text/utf8.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// The whole text, without a byte-order mark.
std::string read_text(const fs::path& path) {
  require<InputError>(path_exists(path), path.string(),
                      "expected a file of records; got none there; check the path");
  const std::unique_ptr<ByteReader> reader = open_bytes(path);
  std::string text;
  constexpr size_t kBlock = size_t{1} << 20;
  for (;;) {
    const size_t before = text.size();
    text.resize(before + kBlock);
    const size_t read = reader->read(std::span(text.data() + before, kBlock));
    text.resize(before + read);
    if (read == 0) break;
    require<InputError>(text.size() <= kLargestText.bytes, path.string(),
                        "expected at most {} bytes of records; got more; split the file",
                        kLargestText.bytes);
  }
  const size_t valid = valid_utf8_prefix(text);
  require<InputError>(valid == text.size(), path.string(),
                      "expected UTF-8; got other bytes at byte {}; convert the file", valid);
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  return text;
}

/// ".jsonl" of "a.jsonl.gz".
std::string ending_of(const fs::path& path) {
  const std::string last = path.extension().string();
  return last == ".gz" || last == ".zst" ? path.stem().extension().string() : last;
}

Json parse_object(std::string_view text, const std::string& place) {
  require_shallow_json<InputError>(text, place);
  Json value = Json::parse(text, nullptr, false);
  require<InputError>(!value.is_discarded(), place,
                      "expected a JSON object; got a line that is no JSON: '{}'",
                      text.substr(0, 60));
  require<InputError>(value.is_object(), place, "expected a JSON object; got {}",
                      value.type_name());
  return value;
}

struct Lines {
  std::string text;
  struct Line {
    size_t begin = 0, size = 0;
    int64_t number = 0;
  };
  std::vector<Line> lines;

  explicit Lines(std::string whole) : text(std::move(whole)) {
    int64_t number = 1;
    for (size_t begin = 0; begin < text.size(); ++number) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      if (text.find_first_not_of(" \t\r", begin) < end)
        lines.push_back({begin, end - begin, number});
      begin = end + 1;
    }
  }
};

/// Rows of fields with the line on which each begins.
struct Table {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
  std::vector<int64_t> lines;
};

/// RFC 4180, with LF or CRLF at the ends of lines.
class TableParser {
 public:
  TableParser(std::string_view text, char separator, const std::string& name)
      : text_(text), separator_(separator), name_(name) {}

  bool row(std::vector<std::string>& fields, int64_t& line) {
    while (at_ < text_.size() && (text_[at_] == '\n' || text_[at_] == '\r')) skip_line_end();
    if (at_ >= text_.size()) return false;
    fields.clear();
    line = line_;
    do {
      fields.push_back(field());
    } while (take_separator());
    skip_line_end();
    return true;
  }

 private:
  bool take_separator() {
    if (at_ >= text_.size() || text_[at_] != separator_) return false;
    ++at_;
    return true;
  }
  void skip_line_end() {
    if (at_ < text_.size() && text_[at_] == '\r') ++at_;
    if (at_ < text_.size() && text_[at_] == '\n') {
      ++at_;
      ++line_;
    }
  }
  std::string field() {
    if (at_ < text_.size() && text_[at_] == '"') return quoted();
    const size_t end =
        std::min(text_.find_first_of(std::string{separator_, '\r', '\n'}, at_), text_.size());
    std::string value(text_.substr(at_, end - at_));
    at_ = end;
    return value;
  }
  std::string quoted() {
    const int64_t begin = line_;
    std::string value;
    for (++at_; at_ < text_.size(); ++at_) {
      if (text_[at_] == '"') {
        if (at_ + 1 == text_.size() || text_[at_ + 1] != '"') {
          ++at_;
          return value;
        }
        ++at_;
      }
      if (text_[at_] == '\n') ++line_;
      value += text_[at_];
    }
    fail<InputError>(fmt::format("{}:{}", name_, begin),
                     "expected a closing quote; got the end of the file");
  }

  std::string_view text_;
  char separator_;
  const std::string& name_;
  size_t at_ = 0;
  int64_t line_ = 1;
};

Table parse_table(std::string_view text, char separator, const std::string& name,
                  std::vector<std::string> columns) {
  Table table{.columns = std::move(columns)};
  TableParser parser(text, separator, name);
  std::vector<std::string> fields;
  int64_t line = 0;
  if (table.columns.empty()) {
    require<InputError>(parser.row(table.columns, line), name,
                        "expected a header line with the names of the fields; got an empty file");
  }
  while (parser.row(fields, line)) {
    require<InputError>(fields.size() == table.columns.size(), fmt::format("{}:{}", name, line),
                        "expected {} fields, as in the header; got {}", table.columns.size(),
                        fields.size());
    table.rows.push_back(fields);
    table.lines.push_back(line);
  }
  return table;
}

}  // namespace

RecordFile::RecordFile(const fs::path& path, std::vector<std::string> columns) {
  const std::string name = path.filename().string(), ending = ending_of(path);
  if (ending == ".jsonl" || ending == ".ndjson") {
    const auto file = std::make_shared<const Lines>(read_text(path));
    size_ = std::ssize(file->lines);
    place_ = [file, name](int64_t n) {
      return fmt::format("{}:{}", name, file->lines.at(static_cast<size_t>(n)).number);
    };
    read_ = [file, place = place_](int64_t n) {
      const Lines::Line& line = file->lines.at(static_cast<size_t>(n));
      return parse_object(std::string_view(file->text).substr(line.begin, line.size), place(n));
    };
  } else if (ending == ".json") {
    const std::string text = read_text(path);
    require_shallow_json<InputError>(text, name);
    const auto list = std::make_shared<Json>(Json::parse(text, nullptr, false));
    require<InputError>(list->is_array(), name, "expected a JSON list of objects; got {}",
                        list->is_discarded() ? "no JSON" : list->type_name());
    size_ = std::ssize(*list);
    place_ = [name](int64_t n) { return fmt::format("{}, entry {}", name, n + 1); };
    read_ = [list, place = place_](int64_t n) {
      const Json& value = list->at(static_cast<size_t>(n));
      require<InputError>(value.is_object(), place(n), "expected a JSON object; got {}",
                          value.type_name());
      return value;
    };
  } else if (ending == ".csv" || ending == ".tsv") {
    const auto table = std::make_shared<const Table>(
        parse_table(read_text(path), ending == ".csv" ? ',' : '\t', name, std::move(columns)));
    size_ = std::ssize(table->rows);
    place_ = [table, name](int64_t n) {
      return fmt::format("{}:{}", name, table->lines.at(static_cast<size_t>(n)));
    };
    read_ = [table](int64_t n) {
      Json record = Json::object();
      const std::vector<std::string>& row = table->rows.at(static_cast<size_t>(n));
      for (size_t i = 0; i < row.size(); ++i) record[table->columns[i]] = row[i];
      return record;
    };
  } else {
    fail<UnsupportedError>(path.string(),
                           "expected .jsonl, .ndjson, .json, .csv or .tsv, alone or with .gz or "
                           ".zst behind it; got '{}'; convert or unpack the file",
                           path.extension().string());
  }
}

}  // namespace fovea
