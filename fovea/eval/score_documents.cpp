// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/score_documents.h"

#include <fmt/ranges.h>

#include "fovea/base/error.h"
#include "fovea/data/document_reader.h"

namespace fovea {
namespace {

class Collect : public DocumentSink {
 public:
  Collect(std::vector<ScoreDocument>& documents, std::string source)
      : documents_(documents), source_(std::move(source)) {}
  void append(std::string_view text) override { text_ += text; }
  void end() override {
    if (!text_.empty()) documents_.push_back({source_, std::move(text_)});
    text_.clear();
  }
  void abandon() override { text_.clear(); }

 private:
  std::vector<ScoreDocument>& documents_;
  std::string source_, text_;
};

}  // namespace

std::vector<ScoreDocument> read_score_documents(std::span<const std::string> paths) {
  std::vector<ScoreDocument> documents;
  for (const std::string& path : paths) {
    DataSource source;
    source.path = path;
    Collect sink(documents, source_name(source));
    StoreCounts counts;
    for (const SourceFile& file : list_source_files(source).files)
      read_documents(file, {}, sink, counts, {});
  }
  require<InputError>(!documents.empty(), "eval", "no text to score in {}; check the paths",
                      fmt::join(paths, ", "));
  return documents;
}

}  // namespace fovea
