// The store cache and the split.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/data/corpus.h"

#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <set>
#include <thread>

#include "tests/data/data_fixture.h"

namespace fovea::corpus_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class CorpusTest : public DataTest {
 protected:
  void write_documents(int count, const std::string& folder = "") const {
    for (int i = 0; i < count; ++i) {
      write(fmt::format("{}doc{:03}.txt", folder, i),
            fmt::format("document {} says {}\n", i, i * 7919));
    }
  }
  size_t folders_in_cache() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(cache()), fs::directory_iterator()));
  }
};

std::set<std::string> as_set(const std::vector<std::string>& texts) {
  return {texts.begin(), texts.end()};
}

TEST_F(CorpusTest, EveryDocumentIsOnExactlyOneSide) {
  write_documents(100);
  const auto corpus = prepare();
  const CorpusSource& source = corpus->sources()[0];
  EXPECT_EQ(source.train.size() + source.validation.size(), 100u);
  std::set<std::string> all = as_set(texts(source, source.train));
  for (const std::string& text : texts(source, source.validation))
    EXPECT_TRUE(all.insert(text).second);
  EXPECT_EQ(all, as_set(all_texts(source)));
}

TEST_F(CorpusTest, TheValidationShareFollowsTheFraction) {
  std::string lines;
  for (int i = 0; i < 4000; ++i) lines += fmt::format("{{\"text\": \"document {}\"}}\n", i);
  write("a.jsonl", lines);
  DataConfig quarter = config("a.jsonl");
  quarter.validation_fraction = 0.25;
  const auto size = static_cast<double>(prepare(quarter)->sources()[0].validation.size());
  EXPECT_NEAR(size, 1000, 5 * 27.4);  // five standard deviations of a binomial(4000, 1/4)
}

TEST_F(CorpusTest, CountsAddUp) {
  write_documents(20);
  write("empty.txt", "");
  const auto corpus = prepare();
  const CorpusSource& source = corpus->sources()[0];
  const StoreCounts& counts = source.store.counts();
  int64_t bytes = 0;
  for (const std::string& text : all_texts(source)) bytes += static_cast<int64_t>(text.size());
  EXPECT_EQ(counts.files, 21);
  EXPECT_EQ(counts.documents, 20);
  EXPECT_EQ(counts.skipped_empty, 1);
  EXPECT_EQ(counts.bytes, bytes);
  EXPECT_EQ(counts.tokens, bytes);  // one token a byte
  EXPECT_EQ(source.train_tokens + source.validation_tokens, bytes + 20 * 2);
  const auto summary = corpus->summary();
  EXPECT_EQ(summary["fingerprint"], corpus->fingerprint());
  EXPECT_EQ(summary["sources"][0]["documents"], 20);
  EXPECT_EQ(summary["sources"][0]["train_tokens"], source.train_tokens);
}

TEST_F(CorpusTest, TheSplitDependsOnContentAndSeedNotOnFileNames) {
  write_documents(60);
  const auto first = prepare();
  for (int i = 0; i < 60; ++i)
    fs::rename(text(fmt::format("doc{:03}.txt", i)),
               text(fmt::format("z{:03}.txt", 997 * i % 1000)));
  const auto renamed = prepare();
  const auto held = [](const auto& corpus) {
    return texts(corpus->sources()[0], corpus->sources()[0].validation);
  };
  EXPECT_EQ(held(first), held(renamed));
  DataConfig other = config();
  other.seed = 1;
  EXPECT_NE(held(first), held(prepare(other)));
}

TEST_F(CorpusTest, EqualDocumentsNeverStraddleTheSplitAlsoAcrossSources) {
  for (int i = 0; i < 40; ++i) {
    for (int copy = 0; copy < 3; ++copy) {
      write(fmt::format("{}/d{}-{}.txt", copy == 0 ? "a" : "b", i, copy),
            fmt::format("content {}\n", i));
    }
  }
  DataConfig two = config("a");
  two.sources.push_back(two.sources[0]);
  two.sources[1].path = text("b").string();
  two.validation_fraction = 0.3;
  const auto corpus = prepare(two);
  std::set<std::string> train, held;
  for (const CorpusSource& source : corpus->sources()) {
    EXPECT_FALSE(source.train.empty());
    EXPECT_FALSE(source.validation.empty());
    train.merge(as_set(texts(source, source.train)));
    held.merge(as_set(texts(source, source.validation)));
  }
  for (const std::string& text : held) EXPECT_FALSE(train.contains(text)) << text;
}

TEST_F(CorpusTest, EverySourceHasBothSidesWhateverTheSeed) {
  write_documents(3, "few/");
  write_documents(2, "two/");
  write("one/a.txt", "a single text\nof two lines\n");
  write("same/a.txt", "again and again\nthe same\n");
  write("same/b.txt", "again and again\nthe same\n");
  DataConfig all = config("few");
  for (const char* name : {"two", "one", "same"}) {
    all.sources.push_back(all.sources[0]);
    all.sources.back().path = text(name).string();
  }
  for (const double fraction : {0.05, 0.5}) {
    for (int seed = 0; seed < 20; ++seed) {
      all.seed = seed;
      all.validation_fraction = fraction;
      const auto corpus = prepare(all);
      for (const auto& source : corpus->sources()) {
        EXPECT_GT(source.train_tokens, 0) << source.name;
        EXPECT_GT(source.validation_tokens, 0) << source.name;
      }
    }
  }
}

TEST_F(CorpusTest, ASingleDocumentIsCutAtALineBorderNearItsEnd) {
  std::string book;
  for (int i = 0; i < 1000; ++i) book += fmt::format("line {} of the book\n", i);
  write("book.txt", book);
  const auto corpus = prepare("book.txt");
  const CorpusSource& source = corpus->sources()[0];
  ASSERT_EQ(source.train.size(), 1u);
  ASSERT_EQ(source.validation.size(), 1u);
  const std::string head = text_of(source, source.train[0]),
                    tail = text_of(source, source.validation[0]);
  EXPECT_EQ(head + tail, book);
  EXPECT_TRUE(head.ends_with('\n'));
  EXPECT_NEAR(static_cast<double>(tail.size()), 0.05 * static_cast<double>(book.size()), 30);
}

TEST_F(CorpusTest, ASingleDocumentWithoutLinesIsCutBetweenCharacters) {
  for (int padding = 0; padding < 3; ++padding) {
    std::string text(static_cast<size_t>(padding), 'x');
    for (int i = 0; i < 100; ++i) text += "\xE2\x82\xAC";
    write("a.txt", text);
    const auto corpus = prepare("a.txt");
    const CorpusSource& source = corpus->sources()[0];
    EXPECT_EQ(text_of(source, source.train[0]) + text_of(source, source.validation[0]), text);
    EXPECT_EQ(text_of(source, source.validation[0])[0], '\xE2');
  }
}

TEST_F(CorpusTest, ADocumentThatIsMostOfTheTextIsNotHeldOutWhole) {
  write("small.txt", "small\n");
  std::string large;
  for (int i = 0; i < 2000; ++i) large += fmt::format("{}\n", i);
  write("large.txt", large);
  for (int seed = 0; seed < 30; ++seed) {
    DataConfig seeded = config();
    seeded.seed = seed;
    const auto corpus = prepare(seeded);
    EXPECT_LT(corpus->sources()[0].validation_tokens, 1500) << seed;
  }
}

TEST_F(CorpusTest, ATextOfOneByteIsTooSmallForBothSides) {
  write("a.txt", "x");
  EXPECT_THAT(message<InputError>("a.txt"), HasSubstr("train and validation"));
}

TEST_F(CorpusTest, TheStoreIsReusedForAnotherSplitAndRebuiltForOtherText) {
  write_documents(10);
  std::vector<bool> reused;
  const auto watch = [&](const CorpusProgress& progress) { reused.push_back(progress.reused); };
  const auto last_run_reused = [&](const DataConfig& config) {
    reused.clear();
    prepare_corpus(config, byte_tokenizer(), watch);
    return reused.back();
  };
  DataConfig data = config();
  EXPECT_FALSE(last_run_reused(data));
  EXPECT_TRUE(last_run_reused(data));
  data.seed = 5;
  data.validation_fraction = 0.2;
  EXPECT_TRUE(last_run_reused(data));
  write("doc003.txt", "other text, other size\n");
  EXPECT_FALSE(last_run_reused(data));
  write("new.txt", "one more\n");
  EXPECT_FALSE(last_run_reused(data));
  data.invalid_utf8 = InvalidUtf8::replace;
  EXPECT_FALSE(last_run_reused(data));
}

TEST_F(CorpusTest, TheFingerprintIsOfTheContentNotOfThePlace) {
  write_documents(10, "here/");
  write_documents(10, "there/");
  DataConfig here = config("here"), there = config("there");
  here.sources[0].name = there.sources[0].name = "same";
  EXPECT_EQ(prepare(here)->fingerprint(), prepare(there)->fingerprint());
  write("there/doc000.txt", "document 0 says 1\n");
  EXPECT_NE(prepare(here)->fingerprint(), prepare(there)->fingerprint());
  DataConfig seeded = here;
  seeded.seed = 9;
  EXPECT_NE(prepare(here)->fingerprint(), prepare(seeded)->fingerprint());
}

TEST_F(CorpusTest, ADamagedStoreIsMadeAnew) {
  write_documents(10);
  const std::string before = prepare()->fingerprint();
  const fs::path store = fs::directory_iterator(cache())->path();
  for (const char* name : {"tokens.bin", "documents.bin", "meta.json"}) {
    fs::resize_file(store / name, 7);
    EXPECT_EQ(prepare()->fingerprint(), before) << name;
    fs::remove(store / name);
    EXPECT_EQ(prepare()->fingerprint(), before) << name;
  }
  EXPECT_EQ(folders_in_cache(), 1u);
}

TEST_F(CorpusTest, AnInterruptedPreparationLeavesNothing) {
  write_documents(10);
  const auto interrupt = [](const CorpusProgress&) { throw Interrupted("stop"); };
  write("bad.txt", "\xFF");
  EXPECT_THROW(prepare(), InputError);
  EXPECT_EQ(folders_in_cache(), 0u);
  fs::remove(text("bad.txt"));
  EXPECT_THROW(prepare_corpus(config(), byte_tokenizer(), interrupt), Interrupted);
  EXPECT_NO_THROW(prepare());
  EXPECT_EQ(folders_in_cache(), 1u);
}

TEST_F(CorpusTest, ManyThreadsAndProcessesMayPrepareAtOnce) {
  write_documents(50);
  std::vector<pid_t> children;
  for (int i = 0; i < 3; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        ::_exit(prepare()->sources()[0].store.documents().size() == 50 ? 0 : 1);
      } catch (...) {
        ::_exit(2);
      }
    }
    children.push_back(child);
  }
  std::vector<std::string> fingerprints(3);
  std::vector<std::thread> threads;
  for (std::string& result : fingerprints)
    threads.emplace_back([&] { result = prepare()->fingerprint(); });
  for (std::thread& thread : threads) thread.join();
  for (const pid_t child : children) {
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  for (const std::string& result : fingerprints) EXPECT_EQ(result, prepare()->fingerprint());
  EXPECT_EQ(folders_in_cache(), 1u);
}

TEST_F(CorpusTest, ACacheThatCannotBeWrittenIsAnIoErrorThatNamesIt) {
  write_documents(3);
  write("file", "no folder");
  DataConfig unwritable = config("doc001.txt");
  unwritable.cache = text("file/cache").string();
  EXPECT_THAT(message<IoError>(unwritable), HasSubstr("file/cache"));
}

TEST_F(CorpusTest, AFullDiskIsAnIoErrorAndLeavesNothing) {
  std::string lines;
  for (int i = 0; i < 20000; ++i) lines += "some text to fill the disk\n";
  write("a.txt", lines);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 100'000, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);  // a write beyond fails as on a full disk
  const std::string what = message<IoError>("a.txt");
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(what, HasSubstr("tokens.bin"));
  EXPECT_EQ(folders_in_cache(), 0u);
}

}  // namespace
}  // namespace fovea::corpus_test
