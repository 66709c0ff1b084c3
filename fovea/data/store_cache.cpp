// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/data/store_cache.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <optional>

#include "fovea/base/error.h"
#include "fovea/data/content_hash.h"
#include "fovea/data/document_reader.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

// Raise when the meaning of a store's content changes.
constexpr int kReaderVersion = 1;
constexpr auto kBetweenReports = std::chrono::milliseconds(100);
// A half-made store of a dead process is removed when it has not grown for this long (the process
// may run elsewhere).
constexpr auto kAbandonedAfter = std::chrono::minutes(10);

std::string store_key(const SourceListing& listing, const DataSource& source,
                      const DataConfig& config, const Tokenizer& tokenizer) {
  Json key = {{"reader", kReaderVersion},
              {"tokenizer", tokenizer.fingerprint()},
              {"field", source.field},
              {"bad_lines", enum_name(config.bad_lines)},
              {"invalid_utf8", enum_name(config.invalid_utf8)}};
  std::string text = key.dump();
  for (const SourceFile& file : listing.files) {
    const std::string path = file.path.string();
    text +=
        fmt::format("\n{} {} {} {} {}", path.size(), path, file.size, file.modified, file.changed);
  }
  return hex64(fingerprint(text, 1)) + hex64(fingerprint(text, 2));
}

// Tokenizes documents into a store.
class StoreSink : public DocumentSink {
 public:
  StoreSink(TokenStoreWriter& writer, const Tokenizer& tokenizer, StoreCounts& counts)
      : writer_(writer), tokenizer_(tokenizer), counts_(counts) {}

  void append(std::string_view text) override {
    hash_.update(text);
    bytes_ += static_cast<int64_t>(text.size());
    tokens_.clear();
    tokenizer_.append(text, tokens_);
    writer_.append(tokens_);
  }
  void end() override {
    if (bytes_ > 0) {
      writer_.end_document(bytes_, hash_.finish());
    } else {
      ++counts_.skipped_empty;
      writer_.abandon_document();
    }
    reset();
  }
  void abandon() override {
    writer_.abandon_document();
    reset();
  }

 private:
  void reset() {
    bytes_ = 0;
    hash_ = ContentHash();
  }

  TokenStoreWriter& writer_;
  const Tokenizer& tokenizer_;
  StoreCounts& counts_;
  std::vector<int32_t> tokens_;
  int64_t bytes_ = 0;
  ContentHash hash_;
};

void require_documents(const TokenStoreWriter& writer, const StoreCounts& counts,
                       const DataSource& source) {
  require<InputError>(
      writer.documents() > 0, "data",
      "expected text in source '{}' ({}); got no document: {} binary files, {} empty documents, {} "
      "bad "
      "lines and {} documents that are not UTF-8 were skipped; name a file or folder with text",
      source_name(source), source.path, counts.skipped_binary, counts.skipped_empty,
      counts.skipped_lines, counts.skipped_invalid);
}

void make_store(const fs::path& folder, const SourceListing& listing, const DataSource& source,
                const DataConfig& config, const Tokenizer& tokenizer, CorpusProgress& progress,
                const CorpusProgressCallback& callback) {
  TokenStoreWriter writer(folder, tokenizer.vocab_size());
  StoreCounts counts;
  counts.skipped_unlisted = listing.unlisted;
  counts.skipped_links = listing.broken_links;
  StoreSink sink(writer, tokenizer, counts);
  const ReadPolicy policy{source.field, config.bad_lines, config.invalid_utf8};
  Clock::time_point reported = Clock::now();
  int64_t bytes_before = 0;
  for (const SourceFile& file : listing.files) {
    read_documents(file, policy, sink, counts, [&](int64_t consumed) {
      progress.bytes_done = bytes_before + consumed;
      if (!callback || Clock::now() - reported < kBetweenReports) return;
      reported = Clock::now();
      callback(progress);
    });
    bytes_before += file.size;
    ++progress.files_done;
  }
  require_documents(writer, counts, source);
  writer.finish(counts, tokenizer.fingerprint());
}

// Removes what killed processes left of this store. Names are "<key>.new-<process>-<number>", with
// write_folder's decorations around them while they are being filled.
void remove_abandoned(const fs::path& cache, const std::string& key) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(cache, ignored)) {
    const std::string name = entry.path().filename().string();
    const std::string mark = key + ".new-";
    const size_t at = name.find(mark);
    if (at == name.npos) continue;
    const long process = std::strtol(name.c_str() + at + mark.size(), nullptr, 10);
    if (process > 0 && (::kill(static_cast<pid_t>(process), 0) == 0 || errno != ESRCH)) continue;
    fs::file_time_type grown = fs::last_write_time(entry.path() / "tokens.bin", ignored);
    if (ignored) grown = fs::last_write_time(entry.path(), ignored);
    if (fs::file_time_type::clock::now() - grown > kAbandonedAfter)
      fs::remove_all(entry.path(), ignored);
  }
}

std::optional<TokenStore> open_whole(const fs::path& folder) {
  if (!fs::exists(folder / "meta.json")) return std::nullopt;
  try {
    return TokenStore::open(folder);
  } catch (const InputError&) {
    return std::nullopt;  // damaged: the caller makes it anew
  }
}

}  // namespace

TokenStore find_or_make_store(const fs::path& cache, const DataSource& source,
                              const DataConfig& config, const Tokenizer& tokenizer,
                              CorpusProgress progress, const CorpusProgressCallback& callback) {
  const SourceListing listing = list_source_files(source);
  progress.files = static_cast<int64_t>(listing.files.size());
  for (const SourceFile& file : listing.files) progress.bytes += file.size;
  const std::string key = store_key(listing, source, config, tokenizer);
  const fs::path folder = cache / key;
  std::optional<TokenStore> store = open_whole(folder);
  progress.reused = store.has_value();
  if (!store) {
    make_folders(cache);
    remove_abandoned(cache, key);
    static std::atomic<int> number{0};
    const fs::path fresh = cache / fmt::format("{}.new-{}-{}", key, ::getpid(), number++);
    write_folder(fresh, [&](const fs::path& temporary) {
      make_store(temporary, listing, source, config, tokenizer, progress, callback);
    });
    // Another process may have been faster; its store has the same content. A damaged one makes
    // way.
    store = open_whole(folder);
    std::error_code error;
    if (!store) {
      fs::remove_all(folder, error);
      fs::rename(fresh, folder, error);
      sync_folder(cache);
      store = error ? open_whole(folder) : TokenStore::open(folder);
      require<IoError>(store.has_value(), "data",
                       "cannot rename '{}' to '{}': {}; check the folder or set data.cache",
                       fresh.string(), folder.string(), error.message());
    }
    fs::remove_all(fresh, error);
  }
  progress.files_done = progress.files;
  progress.bytes_done = progress.bytes;
  if (callback) callback(progress);
  return *std::move(store);
}

}  // namespace fovea
