// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/data/document_reader.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/data/byte_reader.h"
#include "fovea/data/json_line.h"
#include "fovea/text/utf8.h"

namespace fovea {
namespace {

constexpr size_t kReadBlock = 1 << 20;
// A line longer than this is passed on in parts; a line of JSONL is held whole.
constexpr size_t kLongestPart = 4 << 20;
constexpr size_t kLongestJsonLine = 256 << 20;

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool looks_like_utf16(std::string_view head) {
  return head.starts_with("\xFF\xFE") || head.starts_with("\xFE\xFF");
}

// A growing window on the bytes of a file.
class Window {
 public:
  explicit Window(const SourceFile& file) : reader_(open_bytes(file.path)) {}

  /// Reads more; false at the end of the file.
  bool fill() {
    const size_t size = bytes_.size();
    bytes_.resize(size + kReadBlock);
    const size_t count = reader_->read(std::span(bytes_).subspan(size));
    bytes_.resize(size + count);
    return count > 0;
  }
  std::string_view view() const { return {bytes_.data(), bytes_.size()}; }
  void drop(size_t count) {
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(count));
    dropped_ += static_cast<int64_t>(count);
  }
  /// Place of view()[0] in the text, from byte 0.
  int64_t offset() const { return dropped_; }
  int64_t consumed() const { return reader_->consumed(); }

 private:
  std::unique_ptr<ByteReader> reader_;
  std::vector<char> bytes_;
  int64_t dropped_ = 0;
};

// Length of the part to pass on, 0 for "read more".
size_t part_length(std::string_view text, bool at_end) {
  if (at_end) return text.size();
  const size_t line_end = text.rfind('\n');
  if (line_end != text.npos) return line_end + 1;
  return text.size() < kLongestPart ? 0 : text.size() - utf8_unfinished_tail(text);
}

class TextFileReader {
 public:
  TextFileReader(const SourceFile& file, const ReadPolicy& policy, DocumentSink& sink,
                 StoreCounts& counts)
      : file_(file), policy_(policy), sink_(sink), counts_(counts), window_(file) {}

  void read(const ReadProgress& progress) {
    bool more = window_.fill(), first = true;
    while (more || !window_.view().empty()) {
      if (first && window_.view().size() < kByteOrderMark.size() && more) {
        more = window_.fill();
        continue;
      }
      if (first && window_.view().starts_with(kByteOrderMark)) window_.drop(kByteOrderMark.size());
      const size_t length = part_length(window_.view(), !more);
      if (length > 0) {
        if (!pass_on(window_.view().substr(0, length), first)) return sink_.abandon();
        first = false;
        window_.drop(length);
      }
      if (progress) progress(window_.consumed());
      if (more) more = window_.fill();
    }
    ++counts_.files;
    sink_.end();
  }

 private:
  // False: leave the document out.
  bool pass_on(std::string_view text, bool first) {
    const bool utf16 = first && looks_like_utf16(text);
    if (const size_t nul = text.find('\0'); nul != text.npos || utf16) {
      require<InputError>(
          !file_.named, file_.path.string(), "expected text; got {} at byte {}; {}",
          utf16 ? "a UTF-16 byte-order mark" : "a NUL byte",
          window_.offset() + static_cast<int64_t>(utf16 ? 0 : nul),
          utf16 ? "convert it with `iconv -f UTF-16 -t UTF-8`" : "name a text file");
      ++counts_.skipped_binary;
      return false;
    }
    const size_t valid = valid_utf8_prefix(text);
    if (valid == text.size()) {
      sink_.append(text);
      return true;
    }
    switch (policy_.invalid_utf8) {
      case InvalidUtf8::fail:
        fail<InputError>(file_.path.string(),
                         "expected UTF-8; got an invalid byte 0x{:02x} at byte {}; convert the "
                         "file (`iconv -t UTF-8`) or "
                         "set data.invalid_utf8 to replace or skip",
                         static_cast<uint8_t>(text[valid]),
                         window_.offset() + static_cast<int64_t>(valid));
      case InvalidUtf8::skip:
        ++counts_.skipped_invalid;
        return false;
      case InvalidUtf8::replace:
        sink_.append(repair_utf8(text));
        return true;
    }
    return true;
  }

  const SourceFile& file_;
  const ReadPolicy& policy_;
  DocumentSink& sink_;
  StoreCounts& counts_;
  Window window_;
};

class JsonLinesReader {
 public:
  JsonLinesReader(const SourceFile& file, const ReadPolicy& policy, DocumentSink& sink,
                  StoreCounts& counts)
      : file_(file), policy_(policy), sink_(sink), counts_(counts), window_(file) {}

  void read(const ReadProgress& progress) {
    bool more = true;
    while (more) {
      const size_t searched = window_.view().size();
      more = window_.fill();
      const std::string_view view = window_.view();
      if (more && view.substr(searched).find('\n') == view.npos) {  // inside a long line
        require<InputError>(view.size() <= kLongestJsonLine,
                            fmt::format("{}:{}", file_.path.string(), line_ + 1),
                            "a line of JSONL has at most {} MB; this one is longer: is it JSONL?",
                            kLongestJsonLine >> 20);
        continue;
      }
      size_t at = line_ == 0 && view.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
      while (at < view.size()) {
        const size_t end = view.find('\n', at);
        if (end == view.npos && more) break;
        ++line_;
        take(view.substr(at, end == view.npos ? view.npos : end - at));
        at = end == view.npos ? view.size() : end + 1;
      }
      window_.drop(at);
      if (progress) progress(window_.consumed());
    }
    ++counts_.files;
  }

 private:
  void take(std::string_view line) {
    if (line.find_first_not_of(" \t\r") == line.npos) return;
    std::string repaired;
    if (valid_utf8_prefix(line) != line.size()) {
      if (policy_.invalid_utf8 == InvalidUtf8::skip) {
        ++counts_.skipped_invalid;
        return;
      }
      require<InputError>(
          policy_.invalid_utf8 == InvalidUtf8::replace, place(),
          "expected UTF-8; got an invalid byte at byte {} of the line; convert the file (`iconv -t "
          "UTF-8`) or set data.invalid_utf8 to replace or skip",
          valid_utf8_prefix(line));
      repaired = repair_utf8(line);
      line = repaired;
    }
    const JsonLineText found = text_of_json_line(line, policy_.field);
    if (!found.problem.empty()) {
      require<InputError>(policy_.bad_lines == BadLines::skip, place(),
                          "expected a JSON object with text under '{}'; got {}; mend the line, or "
                          "set data.bad_lines to skip",
                          policy_.field, found.problem);
      ++counts_.skipped_lines;
      return;
    }
    sink_.append(found.text);
    sink_.end();
  }
  std::string place() const { return fmt::format("{}:{}", file_.path.string(), line_); }

  const SourceFile& file_;
  const ReadPolicy& policy_;
  DocumentSink& sink_;
  StoreCounts& counts_;
  Window window_;
  int64_t line_ = 0;
};

}  // namespace

void read_documents(const SourceFile& file, const ReadPolicy& policy, DocumentSink& sink,
                    StoreCounts& counts, const ReadProgress& progress) {
  if (file.format == FileFormat::jsonl) {
    JsonLinesReader(file, policy, sink, counts).read(progress);
  } else {
    TextFileReader(file, policy, sink, counts).read(progress);
  }
}

}  // namespace fovea
