// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/data/store_parts.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "fovea/base/error.h"
#include "fovea/data/content_hash.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;

// Tokenizes documents into a store.
class StoreSink : public DocumentSink {
 public:
  StoreSink(TokenStoreWriter& writer, const Tokenizer& tokenizer, StoreCounts& counts)
      : writer_(writer), tokenizer_(tokenizer), counts_(counts) {}

  void append(std::string_view text) override {
    hash_.update(text);
    bytes_ += static_cast<int64_t>(text.size());
    // A part may end inside a word: what is not certain yet waits. It is looked at again when it
    // has doubled, so that a long text without a safe place costs no more than twice.
    waiting_ += text;
    if (waiting_.size() < look_at_) return;
    tokens_.clear();
    waiting_.erase(0, tokenizer_.append_prefix(waiting_, tokens_));
    look_at_ = 2 * waiting_.size();
    writer_.append(tokens_);
  }
  void end() override {
    tokens_.clear();
    tokenizer_.append(waiting_, tokens_);
    writer_.append(tokens_);
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
    look_at_ = 0;
    waiting_.clear();
    hash_ = ContentHash();
  }

  TokenStoreWriter& writer_;
  const Tokenizer& tokenizer_;
  StoreCounts& counts_;
  std::string waiting_;
  size_t look_at_ = 0;
  std::vector<int32_t> tokens_;
  int64_t bytes_ = 0;
  ContentHash hash_;
};

/// Several threads that take parts in order. An error stops the parts behind it, not those before:
/// so the error that is reported does not depend on which thread was faster.
class PartWorkers {
 public:
  PartWorkers(const fs::path& folder, const std::vector<StorePart>& parts, const ReadPolicy& policy,
              const Tokenizer& tokenizer)
      : folder_(folder),
        parts_(parts),
        policy_(policy),
        tokenizer_(tokenizer),
        done_(parts.size()),
        stop_behind_(parts.size()) {}

  void run(size_t threads, const std::function<void(int64_t)>& progress) {
    std::vector<std::jthread> workers;
    for (size_t i = 0; i < threads; ++i) workers.emplace_back([this] { work(); });
    try {
      std::unique_lock lock(mutex_);
      do {
        lock.unlock();
        if (progress) progress(bytes_done());
        lock.lock();
      } while (!changed_.wait_for(lock, std::chrono::milliseconds(100),
                                  [&] { return ended_ == threads; }));
    } catch (...) {
      stop_behind_ = -1;
      throw;  // the jthreads join
    }
    if (error_) std::rethrow_exception(error_);
  }

 private:
  struct Stopped {};

  int64_t bytes_done() const {
    int64_t sum = 0;
    for (const auto& bytes : done_) sum += bytes;
    return sum;
  }

  void work() {
    for (;;) {
      const auto index = static_cast<int64_t>(next_++);
      if (index >= static_cast<int64_t>(parts_.size()) || index > stop_behind_) break;
      try {
        make(static_cast<size_t>(index));
      } catch (const Stopped&) {
        break;
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (index < stop_behind_) {
          stop_behind_ = index;
          error_ = std::current_exception();
        }
        break;
      }
    }
    const std::lock_guard lock(mutex_);
    ++ended_;
    changed_.notify_all();
  }

  static bool is_whole(const fs::path& part) {
    try {
      TokenStore::open(part);
      return true;
    } catch (const InputError&) {
      return false;
    }
  }

  void make(size_t index) {
    const fs::path target = part_folder(folder_, index);
    if (!is_whole(target)) {
      std::error_code ignored;
      fs::remove_all(target, ignored);
      write_folder(target, [&](const fs::path& temporary) {
        TokenStoreWriter writer(temporary, tokenizer_.vocab_size());
        const StoreCounts counts =
            tokenize_files(parts_[index].files, policy_, tokenizer_, writer, [&](int64_t bytes) {
              done_[index] = bytes;
              if (static_cast<int64_t>(index) > stop_behind_) throw Stopped();
            });
        writer.finish(counts, "part");
      });
    }
    done_[index] = parts_[index].bytes;
  }

  const fs::path& folder_;
  const std::vector<StorePart>& parts_;
  const ReadPolicy& policy_;
  const Tokenizer& tokenizer_;
  std::vector<std::atomic<int64_t>> done_;  // bytes of each part
  std::atomic<size_t> next_{0};
  std::atomic<int64_t> stop_behind_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t ended_ = 0;
  std::exception_ptr error_;
};

}  // namespace

std::vector<StorePart> plan_parts(std::span<const SourceFile> files, int64_t part_bytes) {
  std::vector<StorePart> parts;
  size_t begin = 0;
  int64_t bytes = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    bytes += files[i].size;
    if (bytes < part_bytes && i + 1 < files.size()) continue;
    parts.push_back({files.subspan(begin, i + 1 - begin), bytes});
    begin = i + 1;
    bytes = 0;
  }
  return parts;
}

StoreCounts tokenize_files(std::span<const SourceFile> files, const ReadPolicy& policy,
                           const Tokenizer& tokenizer, TokenStoreWriter& writer,
                           const std::function<void(int64_t)>& progress) {
  StoreCounts counts;
  StoreSink sink(writer, tokenizer, counts);
  int64_t bytes_before = 0;
  for (const SourceFile& file : files) {
    read_documents(file, policy, sink, counts,
                   [&](int64_t consumed) { progress(bytes_before + consumed); });
    bytes_before += file.size;
  }
  return counts;
}

fs::path part_folder(const fs::path& parts_folder, size_t index) {
  return parts_folder / fmt::format("{:06}", index);
}

void make_parts(const fs::path& parts_folder, const std::vector<StorePart>& parts,
                const ReadPolicy& policy, const Tokenizer& tokenizer, int threads,
                const std::function<void(int64_t)>& progress) {
  const size_t wanted = threads > 0 ? static_cast<size_t>(threads)
                                    : std::max<size_t>(std::thread::hardware_concurrency(), 1);
  PartWorkers(parts_folder, parts, policy, tokenizer).run(std::min(wanted, parts.size()), progress);
}

}  // namespace fovea
