// fovea data: tokenizers and token stores, made ahead of training.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/interruption.h"
#include "cli/options.h"
#include "cli/verbs.h"
#include "fovea/base/files.h"
#include "fovea/checkpoint/model_file.h"
#include "fovea/data/corpus.h"
#include "fovea/data/document_reader.h"
#include "fovea/text/bpe_trainer.h"
#include "fovea/train/recipe.h"

namespace fovea::cli {
namespace {

constexpr int64_t kFewest = 256 + 3;  // tokens: bytes and marks

struct TrainOptions {
  std::vector<std::string> texts;
  std::string out, field = "text";
  int64_t vocabulary = 4096;
};

/// Hands documents to the trainer, whole words at a time.
class TrainerSink : public DocumentSink {
 public:
  explicit TrainerSink(BpeTrainer& trainer) : trainer_(trainer) {}
  void append(std::string_view text) override {
    waiting_ += text;
    if (waiting_.size() < look_at_) return;
    waiting_.erase(0, trainer_.add_prefix(waiting_));
    look_at_ = 2 * waiting_.size();
  }
  void end() override {
    trainer_.add(waiting_);
    abandon();
  }
  void abandon() override {
    waiting_.clear();
    look_at_ = 0;
  }

 private:
  BpeTrainer& trainer_;
  std::string waiting_;
  size_t look_at_ = 0;
};

void read_texts(const TrainOptions& options, BpeTrainer& trainer, Progress& progress) {
  TrainerSink sink(trainer);
  StoreCounts counts;
  for (const std::string& path : options.texts) {
    DataSource source;
    source.path = path;
    const std::vector<SourceFile> files = list_source_files(source).files;
    int64_t done = 0, total = 0;
    for (const SourceFile& file : files) total += file.size;
    for (const SourceFile& file : files) {
      read_documents(file, {.field = options.field}, sink, counts, [&](int64_t consumed) {
        progress.update({.label = "reading " + source_name(source),
                         .done = static_cast<double>(done + consumed),
                         .total = static_cast<double>(total)});
      });
      done += file.size;
    }
  }
  require<InputError>(trainer.words() > 0, "train-tokenizer", "no text in {}; check the paths",
                      fmt::join(options.texts, ", "));
}

void train_tokenizer(const TrainOptions& options, const Globals& globals) {
  const std::filesystem::path folder = options.out;
  make_folders(folder);  // before the work whose result it takes
  Progress progress(stderr_progress(globals));
  BpeTrainer trainer;
  read_texts(options, trainer, progress);
  const auto merges = trainer.train(options.vocabulary - kFewest, [&](int64_t done, int64_t total) {
    progress.update({.label = "merging",
                     .done = static_cast<double>(done),
                     .total = static_cast<double>(total)});
  });
  progress.finish();
  const auto tokenizer = make_bpe_tokenizer(merges);
  const std::filesystem::path file = folder / "tokenizer.json";
  write_file(file, tokenizer->file().content);
  if (globals.json) {
    print(nlohmann::ordered_json{{"tokenizer", file.string()},
                                 {"vocabulary", tokenizer->vocab_size()},
                                 {"merges", merges.size()},
                                 {"bytes", trainer.bytes()},
                                 {"fingerprint", tokenizer->fingerprint()}}
              .dump(2) +
          "\n");
    return;
  }
  print(fmt::format("{}: {} tokens from {:.1f} MB of text\n", file.string(),
                    tokenizer->vocab_size(), static_cast<double>(trainer.bytes()) / 1e6));
  if (tokenizer->vocab_size() < options.vocabulary)
    print("no pair of neighbours stands twice any more: more text would give more tokens\n");
  print(fmt::format("in a recipe: tokenizer: {}\n", folder.string()));
}

struct PrepareOptions {
  std::string source, tokenizer, field = "text", cache;
  std::vector<std::string> overrides;
};

bool is_recipe(const std::filesystem::path& path) {
  return path.extension() == ".yaml" || path.extension() == ".yml";
}

void prepare(const PrepareOptions& options, const Globals& globals) {
  DataConfig data;
  std::string name = options.tokenizer.empty() ? "bytes" : options.tokenizer;
  if (is_recipe(options.source)) {
    const Recipe recipe = load_recipe(options.source, options.overrides).recipe.resolved();
    data = recipe.data;
    if (options.tokenizer.empty()) name = recipe.tokenizer;
  } else {
    require<UsageError>(options.overrides.empty(), "prepare",
                        "overrides belong to a recipe (.yaml); '{}' is text", options.source);
    data.sources.push_back({.path = options.source, .field = options.field});
  }
  if (!options.cache.empty()) data.cache = options.cache;
  Progress progress(stderr_progress(globals));
  InterruptGuard interrupt;
  leave_within_a_second(interrupt, globals,
                        "[data] stopped; what is done stays: the same command goes on");
  const auto tokenizer = open_named_tokenizer(name);
  const auto corpus = prepare_corpus(data, tokenizer, [&](const CorpusProgress& p) {
    require<Interrupted>(!*interrupt.flag(), "data",
                         "stopped; what is done stays: the same command goes on");
    progress.update({.label = (p.reused ? "found " : "reading ") + p.source,
                     .done = static_cast<double>(p.bytes_done),
                     .total = static_cast<double>(p.bytes)});
  });
  progress.finish();
  if (globals.json) {
    print(corpus->summary().dump(2) + "\n");
    return;
  }
  for (const CorpusSource& source : corpus->sources()) {
    const StoreCounts& counts = source.store.counts();
    print(fmt::format(
        "{}: {} documents, {:.2f} MB, {} tokens ({:.2f} bytes a token); {} to train, "
        "{} to validate on\n",
        source.name, counts.documents, static_cast<double>(counts.bytes) / 1e6, counts.tokens,
        static_cast<double>(counts.bytes) /
            static_cast<double>(std::max<int64_t>(counts.tokens, 1)),
        source.train_tokens, source.validation_tokens));
  }
}

}  // namespace

Verb add_data_verb(Command& app, Globals& globals) {
  auto train = std::make_shared<TrainOptions>();
  auto store = std::make_shared<PrepareOptions>();
  Command* verb = app.add_subcommand("data", "train a tokenizer; tokenize text ahead of training");
  verb->require_subcommand(1);
  Command* tokenizer = verb->add_subcommand(
      "train-tokenizer", "learn a byte-level BPE tokenizer (tokenizer.json) from text");
  tokenizer->add_option("texts", train->texts, "files and folders: text or JSONL, .gz and .zst too")
      ->required();
  tokenizer->add_option("--out", train->out, "folder for tokenizer.json")->required();
  tokenizer->add_option("--vocab", train->vocabulary, "tokens, the bytes and three marks included")
      ->capture_default_str()
      ->check(in_range({kFewest, 1 << 22}));
  tokenizer->add_option("--field", train->field, "JSONL: the key that holds the text")
      ->capture_default_str();
  add_global_options(*tokenizer, globals);
  Command* prepared = verb->add_subcommand(
      "prepare",
      "tokenize text into the cache, on all cores; a second run goes on or has nothing "
      "to do");
  prepared
      ->add_option("source", store->source,
                   "recipe (.yaml), whose sources are prepared; or a text file, JSONL or folder")
      ->required();
  prepared->add_option("overrides", store->overrides, "of the recipe: key=value");
  prepared->add_option("--tokenizer", store->tokenizer,
                       "bytes, or a tokenizer as the recipe takes it [the recipe's; bytes]");
  prepared->add_option("--field", store->field, "JSONL: the key that holds the text")
      ->capture_default_str();
  prepared->add_option("--cache", store->cache, "folder for the tokens [data.cache of the recipe]");
  add_global_options(*prepared, globals);
  return {.parser = verb,
          .run =
              [=, &globals] {
                if (tokenizer->parsed()) return train_tokenizer(*train, globals);
                prepare(*store, globals);
              },
          .resumes = true,
          .memory_remedy = "take less text"};
}

}  // namespace fovea::cli
