// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/data/corpus.h"

#include "fovea/base/error.h"
#include "fovea/data/find_block.h"
#include "fovea/data/split.h"
#include "fovea/data/store_cache.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string corpus_fingerprint(const DataConfig& config, const std::vector<CorpusSource>& sources) {
  Json json = {{"seed", config.seed}, {"validation_fraction", config.validation_fraction}};
  for (const CorpusSource& source : sources) {
    json["sources"].push_back({source.name, source.weight, source.store.fingerprint()});
    if (source.scored_tail > 0) json["scored_tails"].push_back({source.name, source.scored_tail});
  }
  return hex64(fingerprint(json.dump(-1, ' ', false, Json::error_handler_t::replace)));
}

// A task whose lines are made here becomes a file of the cache.
DataSource with_made_text(const DataSource& given, const fs::path& cache) {
  DataSource source = given;
  if (!given.path.starts_with("find-the-block")) return source;
  if (source.name.empty()) source.name = "find-the-block";
  source.path = find_block_file(parse_find_block(given.path), cache / "made").string();
  return source;
}

}  // namespace

Corpus::Corpus(std::shared_ptr<const Tokenizer> tokenizer, std::vector<CorpusSource> sources,
               std::string fingerprint)
    : tokenizer_(std::move(tokenizer)),
      sources_(std::move(sources)),
      fingerprint_(std::move(fingerprint)) {}

Json Corpus::summary() const {
  Json list = Json::array();
  for (const CorpusSource& source : sources_) {
    Json one = {{"name", source.name},
                {"weight", source.weight},
                {"fingerprint", source.store.fingerprint()}};
    one.update(source.store.counts().to_json());
    one["train_documents"] = source.train.size();
    one["train_tokens"] = source.train_tokens;
    one["validation_documents"] = source.validation.size();
    one["validation_tokens"] = source.validation_tokens;
    list.push_back(std::move(one));
  }
  return {{"fingerprint", fingerprint_},
          {"tokenizer", tokenizer_->fingerprint()},
          {"sources", std::move(list)}};
}

std::shared_ptr<const Corpus> prepare_corpus(const DataConfig& config,
                                             std::shared_ptr<const Tokenizer> tokenizer,
                                             const CorpusProgressCallback& progress) {
  config.check();
  const fs::path cache =
      config.cache.empty() ? default_data_cache() : resolve_source_path(config.cache);
  std::vector<CorpusSource> sources;
  for (const DataSource& given : config.sources) {
    const DataSource source = with_made_text(given, cache);
    const CorpusProgress numbers{.source = source_name(source),
                                 .source_index = static_cast<int64_t>(sources.size()),
                                 .sources = static_cast<int64_t>(config.sources.size())};
    TokenStore store = find_or_make_store(cache, source, config, *tokenizer, numbers, progress);
    sources.push_back(
        {source_name(source), source.weight, 0, 0, {}, {}, std::move(store), source.scored_tail});
  }
  split_sources(sources, *tokenizer, config.validation_fraction,
                static_cast<uint64_t>(config.seed));
  std::string fingerprint = corpus_fingerprint(config, sources);
  return std::make_shared<const Corpus>(std::move(tokenizer), std::move(sources),
                                        std::move(fingerprint));
}

}  // namespace fovea
