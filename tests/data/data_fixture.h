// A temporary folder with texts and a cache, and a config that points at them.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/data/batch_stream.h"
#include "fovea/data/corpus.h"

namespace fovea {

class DataTest : public ::testing::Test {
 protected:
  DataTest() {
    static int number = 0;
    folder_ = std::filesystem::temp_directory_path() /
              fmt::format("fovea-data-{}-{}", getpid(), number++);
    std::filesystem::create_directories(folder_ / "text");
  }
  ~DataTest() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path text(const std::string& name) const { return folder_ / "text" / name; }
  std::filesystem::path cache() const { return folder_ / "cache"; }
  void write(const std::string& name, std::string_view bytes) const {
    std::filesystem::create_directories(text(name).parent_path());
    std::ofstream(text(name), std::ios::binary) << bytes;  // without the fsyncs of write_file
  }
  /// One source: a file of the text folder, or the whole folder for "".
  DataConfig config(const std::string& name = "") const {
    DataConfig config;
    config.sources.resize(1);
    config.sources[0].path = name.empty() ? (folder_ / "text").string() : text(name).string();
    config.cache = cache().string();
    return config;
  }
  std::shared_ptr<const Corpus> prepare(const DataConfig& config) const {
    return prepare_corpus(config, byte_tokenizer());
  }
  std::shared_ptr<const Corpus> prepare(const std::string& name = "") const {
    return prepare(config(name));
  }

  /// The message of the E that preparing throws.
  template <class E>
  std::string message(const DataConfig& config) const {
    try {
      prepare(config);
    } catch (const E& error) {
      return error.what();
    } catch (const std::exception& error) {
      return std::string("another type: ") + error.what();
    }
    return "nothing was thrown";
  }
  template <class E>
  std::string message(const std::string& name = "") const {
    return message<E>(config(name));
  }

  static std::string text_of(const CorpusSource& source, const DocumentSpan& span) {
    std::vector<int32_t> tokens(static_cast<size_t>(span.length));
    source.store.read(span.offset, tokens);
    std::string text;
    for (const int32_t token : tokens) text += static_cast<char>(token);
    return text;
  }
  /// Texts of one side, sorted.
  static std::vector<std::string> texts(const CorpusSource& source,
                                        const std::vector<DocumentSpan>& spans) {
    std::vector<std::string> texts;
    for (const DocumentSpan& span : spans) texts.push_back(text_of(source, span));
    std::sort(texts.begin(), texts.end());
    return texts;
  }
  /// Texts of both sides, in the order of the store; cut documents are whole.
  static std::vector<std::string> all_texts(const CorpusSource& source) {
    std::vector<std::string> texts;
    for (const StoredDocument& document : source.store.documents()) {
      texts.push_back(text_of(source, {document.offset, document.length}));
    }
    return texts;
  }

  std::filesystem::path folder_;
};

}  // namespace fovea
