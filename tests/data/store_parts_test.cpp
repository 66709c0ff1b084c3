// A source read in parts, on several threads and in several attempts, against one read in a row.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/data/store_parts.h"

#include <signal.h>
#include <sys/wait.h>

#include "fovea/data/store_cache.h"
#include "tests/data/data_fixture.h"
#include "tests/support/expect_error.h"

namespace fovea::store_parts_test {
namespace {

namespace fs = std::filesystem;

class StoreParts : public DataTest {
 protected:
  StoreParts() {
    for (int i = 0; i < 40; ++i) {
      const std::string line = fmt::format("document {} says so {} times\n", i, i * 7);
      std::string content;
      for (int n = 0; n <= i; ++n) content += line;
      write(fmt::format("{:02}.txt", i), content);
    }
  }
  TokenStore make(const std::string& cache, const PartRules& rules,
                  const CorpusProgressCallback& callback = {}) const {
    const DataConfig c = config();
    return find_or_make_store(folder_ / cache, c.sources[0], c, *byte_tokenizer(), {}, callback,
                              rules);
  }
  static std::string bytes_of(const fs::path& cache, const char* file) {
    for (const auto& entry : fs::directory_iterator(cache)) return read_file(entry.path() / file);
    return "";
  }
  std::vector<std::string> names_in(const std::string& cache) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_ / cache))
      names.push_back(entry.path().filename().string());
    return names;
  }
  // 40 files of together 24 KB: about ten parts.
  static constexpr PartRules kParts{.part_bytes = 2000, .threads = 3};
  static constexpr PartRules kOnePart{};
};

TEST_F(StoreParts, PartsAreRunsOfFilesThatCoverEachOnce) {
  const SourceListing listing = list_source_files(config().sources[0]);
  const auto parts = plan_parts(listing.files, 2000);
  EXPECT_GT(parts.size(), 5U);
  const SourceFile* next = listing.files.data();
  for (const StorePart& part : parts) {
    EXPECT_EQ(part.files.data(), next);
    next += part.files.size();
    EXPECT_TRUE(part.bytes >= 2000 || &part == &parts.back());
  }
  EXPECT_EQ(next, listing.files.data() + listing.files.size());
}

TEST_F(StoreParts, TheStoreOfPartsIsTheOneReadInARowByteForByte) {
  const TokenStore in_a_row = make("a", kOnePart), of_parts = make("b", kParts);
  EXPECT_EQ(of_parts.fingerprint(), in_a_row.fingerprint());
  EXPECT_EQ(of_parts.counts().files, 40);
  for (const char* file : {"tokens.bin", "documents.bin", "meta.json"})
    EXPECT_EQ(bytes_of(folder_ / "b", file), bytes_of(folder_ / "a", file)) << file;
  EXPECT_EQ(names_in("b").size(), 1U) << "parts stayed behind";
}

TEST_F(StoreParts, AnInterruptedPreparationLeavesNoStoreAndTheNextOneIsWhole) {
  EXPECT_THROW(make("a", kParts, [](const CorpusProgress&) { throw Interrupted("stop"); }),
               Interrupted);
  for (const std::string& name : names_in("a")) EXPECT_TRUE(name.ends_with(".parts")) << name;
  EXPECT_EQ(make("a", kParts).fingerprint(), make("b", kOnePart).fingerprint());
}

TEST_F(StoreParts, WhatWasDoneBeforeAKillIsNotReadAgainAndDamageIsMadeAnew) {
  make("a", kParts);
  const std::string key = names_in("a").front();
  fs::remove_all(folder_ / "a" / key);
  const fs::path done = folder_ / "a" / (key + ".parts");
  const SourceListing listing = list_source_files(config().sources[0]);
  auto parts = plan_parts(listing.files, kParts.part_bytes);
  parts.resize(3);
  fs::create_directories(done);
  make_parts(done, parts, {}, *byte_tokenizer(), 1, {});
  fs::resize_file(part_folder(done, 1) / "tokens.bin", 10);
  // A mark in the first part: it arrives only if the part is taken as it is.
  std::string tokens = read_file(part_folder(done, 0) / "tokens.bin");
  tokens[0] = 'X';
  write_file(part_folder(done, 0) / "tokens.bin", tokens);
  const TokenStore store = make("a", kParts), whole = make("b", kOnePart);
  std::vector<int32_t> found(static_cast<size_t>(store.tokens())), expected(found.size());
  store.read(0, found);
  whole.read(0, expected);
  expected[0] = 'X';
  EXPECT_EQ(found, expected);
  EXPECT_EQ(names_in("a"), std::vector<std::string>{key});
}

TEST_F(StoreParts, OfSeveralBadFilesTheFirstIsNamedHoweverManyThreads) {
  for (const char* name : {"07.txt", "23.txt", "39.txt"}) write(name, std::string(900, '\xFF'));
  for (int round = 0; round < 5; ++round) EXPECT_ERROR(InputError, make("a", kParts), "07.txt");
}

TEST_F(StoreParts, AKilledProcessHoldsNobodyUpAndManyMayPrepareAtOnce) {
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      const auto die = [&](const CorpusProgress&) {
        if (i == 0) ::raise(SIGKILL);
      };
      try {
        ::_exit(make("a", kParts, die).documents().size() == 40 ? 0 : 1);
      } catch (...) {
        ::_exit(2);
      }
    }
    children.push_back(child);
  }
  for (size_t i = 0; i < children.size(); ++i) {
    int status = -1;
    ::waitpid(children[i], &status, 0);
    if (i > 0) {
      EXPECT_EQ(status, 0);
    }
  }
  EXPECT_EQ(make("a", kParts).fingerprint(), make("b", kOnePart).fingerprint());
}

}  // namespace
}  // namespace fovea::store_parts_test
