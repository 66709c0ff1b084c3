// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/data/store_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <optional>
#include <thread>

#include "fovea/base/error.h"
#include "fovea/data/store_parts.h"

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
// Parts of a source that nobody asks for any more (its files changed) go after this long.
constexpr auto kForgottenAfter = std::chrono::hours(24 * 7);
constexpr const char* kParts = ".parts";

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

void finish_store(TokenStoreWriter& writer, const StoreCounts& counts, const DataSource& source,
                  const Tokenizer& tokenizer) {
  require<InputError>(
      writer.documents() > 0, "data",
      "expected text in source '{}' ({}); got no document: {} binary files, {} empty documents, {} "
      "bad lines and {} documents that are not UTF-8 were skipped; name a file or folder with text",
      source_name(source), source.path, counts.skipped_binary, counts.skipped_empty,
      counts.skipped_lines, counts.skipped_invalid);
  writer.finish(counts, tokenizer.fingerprint());
}

StoreCounts listed_counts(const SourceListing& listing) {
  StoreCounts counts;
  counts.skipped_unlisted = listing.unlisted;
  counts.skipped_links = listing.broken_links;
  return counts;
}

void make_store(const fs::path& folder, const SourceListing& listing, const DataSource& source,
                const DataConfig& config, const Tokenizer& tokenizer, CorpusProgress& progress,
                const CorpusProgressCallback& callback) {
  TokenStoreWriter writer(folder, tokenizer.vocab_size());
  Clock::time_point reported = Clock::now();
  const StoreCounts counts =
      tokenize_files(listing.files, {source.field, config.bad_lines, config.invalid_utf8},
                     tokenizer, writer, [&](int64_t bytes_done) {
                       progress.bytes_done = bytes_done;
                       if (!callback || Clock::now() - reported < kBetweenReports) return;
                       reported = Clock::now();
                       callback(progress);
                     });
  finish_store(writer, listed_counts(listing) += counts, source, tokenizer);
}

/// The same content, from parts in `parts_folder`.
void make_store_of_parts(const fs::path& folder, const fs::path& parts_folder,
                         const SourceListing& listing, const DataSource& source,
                         const DataConfig& config, const Tokenizer& tokenizer,
                         const std::vector<StorePart>& parts, const PartRules& rules,
                         const std::function<void(int64_t)>& progress) {
  make_parts(parts_folder, parts, {source.field, config.bad_lines, config.invalid_utf8}, tokenizer,
             rules.threads, progress);
  TokenStoreWriter writer(folder, tokenizer.vocab_size());
  StoreCounts counts = listed_counts(listing);
  for (size_t i = 0; i < parts.size(); ++i) {
    const TokenStore part = TokenStore::open(part_folder(parts_folder, i));
    writer.append_store(part);
    counts += part.counts();
  }
  finish_store(writer, counts, source, tokenizer);
}

// Removes what killed processes left. Half-made stores are "<key>.new-<process>-<number>", with
// write_folder's decorations around them while they are being filled; parts are "<key>.parts".
void remove_abandoned(const fs::path& cache, const std::string& key) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(cache, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(kParts)) {
      const auto age = fs::file_time_type::clock::now() - fs::last_write_time(entry, ignored);
      if (!ignored && age > kForgottenAfter) fs::remove_all(entry.path(), ignored);
      continue;
    }
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

/// One thread or process at a time, where the file system has locks.
class PublishingTurn {
 public:
  explicit PublishingTurn(const fs::path& cache)
      : descriptor_(::open(cache.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    while (descriptor_ >= 0 && ::flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) continue;
  }
  ~PublishingTurn() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  PublishingTurn(const PublishingTurn&) = delete;
  PublishingTurn& operator=(const PublishingTurn&) = delete;

 private:
  int descriptor_;
};

/// Moves a finished store to its place. Another process may have been faster; its store has the
/// same content. A damaged one makes way: only in turn, or a store that appeared since the look at
/// it would be removed.
TokenStore publish(const fs::path& fresh, const fs::path& folder) {
  const PublishingTurn turn(folder.parent_path());
  std::optional<TokenStore> store = open_whole(folder);
  std::error_code error;
  if (!store) {
    fs::remove_all(folder, error);
    fs::rename(fresh, folder, error);
    sync_folder(folder.parent_path());
    store = error ? open_whole(folder) : TokenStore::open(folder);
    require<IoError>(store.has_value(), "data",
                     "cannot rename '{}' to '{}': {}; check the folder or set data.cache",
                     fresh.string(), folder.string(), error.message());
  }
  fs::remove_all(fresh, error);
  return *std::move(store);
}

/// Locks `folder`, which is made; nothing where, while another process had it locked, the store
/// appeared.
std::optional<FolderLock> lock_parts(const fs::path& folder, const fs::path& store,
                                     const std::function<void()>& waiting) {
  for (;;) {
    if (open_whole(store)) return std::nullopt;
    make_folders(folder);
    try {
      FolderLock lock(folder);
      if (open_whole(store)) return std::nullopt;
      return lock;
    } catch (const LockedError&) {
      waiting();
      std::this_thread::sleep_for(kBetweenReports);
    } catch (const IoError&) {  // whoever finished has just removed the folder
      if (fs::exists(folder)) throw;
    }
  }
}

}  // namespace

TokenStore find_or_make_store(const fs::path& cache, const DataSource& source,
                              const DataConfig& config, const Tokenizer& tokenizer,
                              CorpusProgress progress, const CorpusProgressCallback& callback,
                              const PartRules& rules) {
  const SourceListing listing = list_source_files(source);
  progress.files = static_cast<int64_t>(listing.files.size());
  for (const SourceFile& file : listing.files) progress.bytes += file.size;
  const std::string key = store_key(listing, source, config, tokenizer);
  const fs::path folder = cache / key;
  const auto done = [&](TokenStore store) {
    progress.files_done = progress.files;
    progress.bytes_done = progress.bytes;
    if (callback) callback(progress);
    return store;
  };
  if (std::optional<TokenStore> store = open_whole(folder)) {
    progress.reused = true;
    return done(*std::move(store));
  }
  make_folders(cache);
  remove_abandoned(cache, key);
  static std::atomic<int> number{0};
  const fs::path fresh = cache / fmt::format("{}.new-{}-{}", key, ::getpid(), number++);
  const std::vector<StorePart> parts = plan_parts(listing.files, rules.part_bytes);
  if (parts.size() < 2) {
    write_folder(fresh, [&](const fs::path& temporary) {
      make_store(temporary, listing, source, config, tokenizer, progress, callback);
    });
    return done(publish(fresh, folder));
  }
  const auto report = [&](int64_t bytes_done) {
    progress.bytes_done = bytes_done;
    if (callback) callback(progress);
  };
  const fs::path parts_folder = cache / (key + kParts);
  const auto lock = lock_parts(parts_folder, folder, [&] { report(progress.bytes_done); });
  if (!lock) return done(TokenStore::open(folder));
  write_folder(fresh, [&](const fs::path& temporary) {
    make_store_of_parts(temporary, parts_folder, listing, source, config, tokenizer, parts, rules,
                        report);
  });
  TokenStore store = publish(fresh, folder);
  std::error_code ignored;
  fs::remove_all(parts_folder, ignored);
  return done(std::move(store));
}

}  // namespace fovea
