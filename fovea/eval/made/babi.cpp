// The reader of bAbI files.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/made/babi.h"

#include <algorithm>
#include <charconv>

#include "fovea/base/error.h"
#include "fovea/base/files.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r";
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

class Parser {
 public:
  explicit Parser(std::string_view name) : name_(name) {}

  void line(std::string_view text, int64_t number) {
    const std::string place = fmt::format("{}:{}", name_, number);
    int64_t id = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
    const auto digits = static_cast<size_t>(end - text.data());
    require<InputError>(error == std::errc() && digits < text.size() && text[digits] == ' ', place,
                        "expected a line number, a space and a sentence; got '{}'",
                        text.substr(0, 60));
    require<InputError>(id == 1 || id == last_ + 1, place,
                        "expected line {} of a story, or 1; got {}", last_ + 1, id);
    last_ = id;
    if (id == 1) facts_.clear();
    text.remove_prefix(digits + 1);
    const size_t tab = text.find('\t');
    if (tab == std::string_view::npos) {
      require<InputError>(!trim(text).empty(), place, "expected a sentence; got none");
      facts_.emplace_back(trim(text));
    } else {
      question(text.substr(0, tab), text.substr(tab + 1), place);
    }
  }
  std::vector<BabiSample> finish() {
    require<InputError>(!samples_.empty(), name_,
                        "expected a bAbI file with questions ('3 Where is Mary?<tab>bathroom'); it "
                        "has none");
    return std::move(samples_);
  }

 private:
  void question(std::string_view asked, std::string_view rest, const std::string& place) {
    const std::string_view answer = trim(rest.substr(0, rest.find('\t')));
    require<InputError>(!trim(asked).empty() && !answer.empty(), place,
                        "expected a question, a tab and its answer; got '{}' and '{}'", trim(asked),
                        answer);
    require<InputError>(!facts_.empty(), place, "expected facts before the question; got none");
    samples_.push_back({facts_, std::string(trim(asked)), std::string(answer)});
  }

  std::string_view name_;
  int64_t last_ = 0;
  std::vector<std::string> facts_;
  std::vector<BabiSample> samples_;
};

}  // namespace

std::vector<BabiSample> parse_babi(std::string_view text, std::string_view name) {
  Parser parser(name);
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!trim(line).empty()) parser.line(line, number);
  }
  return parser.finish();
}

std::vector<BabiSample> read_babi(const fs::path& path) {
  return parse_babi(read_file(path), path.filename().string());
}

fs::path find_babi(const fs::path& folder, int task, std::string_view split) {
  const std::string begin = fmt::format("qa{}_", task), end = fmt::format("_{}.txt", split);
  for (const char* sub : {"", "en", "en-10k"}) {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(folder / sub, none)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(begin) && name.ends_with(end)) return entry.path();
    }
  }
  fail<InputError>("babilong",
                   "expected a file {}*{} of the bAbI tasks in '{}', its 'en' or its "
                   "'en-10k'; got none: give the folder that holds them",
                   begin, end, folder.string());
}

}  // namespace fovea
