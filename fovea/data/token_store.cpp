// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/data/token_store.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "fovea/base/error.h"
#include "fovea/text/result_json.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;
constexpr size_t kBuffer = 4 << 20;
static_assert(std::is_trivially_copyable_v<StoredDocument> && sizeof(StoredDocument) == 32);

int token_width(int64_t vocab_size) { return vocab_size <= 65536 ? 2 : 4; }

template <class T>
void copy_tokens(const std::byte* from, std::span<int32_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T token;
    std::memcpy(&token, from + i * sizeof(T), sizeof(T));
    out[i] = static_cast<int32_t>(token);
  }
}

template <class T>
void append_tokens(std::span<const int32_t> tokens, std::string& buffer) {
  const size_t start = buffer.size();
  buffer.resize(start + tokens.size() * sizeof(T));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const T token = static_cast<T>(tokens[i]);
    std::memcpy(buffer.data() + start + i * sizeof(T), &token, sizeof(T));
  }
}

}  // namespace

template <class V>
void describe(V& v, StoreCounts& c) {
  v("files", c.files);
  v("documents", c.documents);
  v("bytes", c.bytes);
  v("tokens", c.tokens);
  v("skipped_binary", c.skipped_binary);
  v("skipped_empty", c.skipped_empty);
  v("skipped_lines", c.skipped_lines);
  v("skipped_invalid", c.skipped_invalid);
  v("skipped_unlisted", c.skipped_unlisted);
  v("skipped_links", c.skipped_links);
}

Json StoreCounts::to_json() const { return described_json(*this); }

StoreCounts StoreCounts::from_json(const Json& json) {
  StoreCounts counts;
  read_result<InputError>(json, "token store", counts);
  return counts;
}

StoreCounts& StoreCounts::operator+=(const StoreCounts& other) {
  const Json more = other.to_json();
  const auto add = [&](const char* key, int64_t& value) { value += more[key].get<int64_t>(); };
  describe(add, *this);
  return *this;
}

TokenStore TokenStore::open(const fs::path& folder) {
  TokenStore store;
  const fs::path meta_path = folder / "meta.json";
  int64_t tokens_in_file = 0;
  try {
    const Json meta = Json::parse(read_file(meta_path));
    require<InputError>(meta.at("format") == kFormat, meta_path.string(),
                        "expected format {}; got {}", kFormat, meta.at("format").dump());
    store.width_ = meta.at("width").get<int>();
    store.fingerprint_ = meta.at("fingerprint").get<std::string>();
    store.counts_ = StoreCounts::from_json(meta.at("counts"));
    tokens_in_file = meta.at("tokens_in_file").get<int64_t>();
  } catch (const Json::exception& error) {
    fail<InputError>(meta_path.string(), "expected the description of a token store; got {}",
                     error.what());
  }
  store.tokens_ = store.counts_.tokens;
  store.token_file_ = std::make_shared<MappedFile>(folder / "tokens.bin");
  store.document_file_ = std::make_shared<MappedFile>(folder / "documents.bin");
  const auto documents = store.document_file_->bytes();
  const int64_t token_bytes = tokens_in_file * store.width_;
  const int64_t document_bytes =
      store.counts_.documents * static_cast<int64_t>(sizeof(StoredDocument));
  require<InputError>(
      static_cast<int64_t>(store.token_file_->bytes().size()) == token_bytes &&
          static_cast<int64_t>(documents.size()) == document_bytes,
      folder.string(), "expected {} and {} bytes; got {} and {}: the token store is damaged",
      token_bytes, document_bytes, store.token_file_->bytes().size(), documents.size());
  store.documents_ = {reinterpret_cast<const StoredDocument*>(documents.data()),
                      static_cast<size_t>(store.counts_.documents)};
  return store;
}

void TokenStore::read(int64_t offset, std::span<int32_t> out) const {
  const std::byte* from = token_file_->bytes().data() + offset * width_;
  width_ == 2 ? copy_tokens<uint16_t>(from, out) : copy_tokens<uint32_t>(from, out);
}

TokenStoreWriter::TokenStoreWriter(const fs::path& folder, int64_t vocab_size)
    : folder_(folder), file_(folder / "tokens.bin"), width_(token_width(vocab_size)) {}

void TokenStoreWriter::append(std::span<const int32_t> tokens) {
  width_ == 2 ? append_tokens<uint16_t>(tokens, buffer_) : append_tokens<uint32_t>(tokens, buffer_);
  written_ += static_cast<int64_t>(tokens.size());
  if (buffer_.size() >= kBuffer) flush();
}

void TokenStoreWriter::end_document(int64_t bytes, uint64_t hash) {
  documents_.push_back({.offset = document_start_,
                        .length = written_ - document_start_,
                        .bytes = bytes,
                        .hash = hash});
  document_start_ = written_;
}

void TokenStoreWriter::abandon_document() { document_start_ = written_; }

void TokenStoreWriter::append_store(const TokenStore& store) {
  constexpr int64_t kBlock = 1 << 20;
  std::vector<int32_t> tokens;
  for (const StoredDocument& document : store.documents()) {
    for (int64_t done = 0; done < document.length; done += kBlock) {
      tokens.resize(static_cast<size_t>(std::min(kBlock, document.length - done)));
      store.read(document.offset + done, tokens);
      append(tokens);
    }
    end_document(document.bytes, document.hash);
  }
}

void TokenStoreWriter::flush() {
  file_.write(std::string_view(buffer_));
  buffer_.clear();
}

void TokenStoreWriter::finish(StoreCounts counts, std::string_view tokenizer_fingerprint) {
  flush();
  file_.close();
  uint64_t hash = fingerprint(tokenizer_fingerprint);
  counts.documents = documents();
  counts.bytes = counts.tokens = 0;
  for (const StoredDocument& document : documents_) {
    counts.bytes += document.bytes;
    counts.tokens += document.length;
    const uint64_t content[2] = {document.hash, static_cast<uint64_t>(document.length)};
    hash = fingerprint({reinterpret_cast<const char*>(content), sizeof content}, hash);
  }
  OutputFile table(folder_ / "documents.bin");
  table.write(std::as_bytes(std::span(documents_)));
  table.close();
  const Json meta = {{"format", kFormat},          {"width", width_},
                     {"tokens_in_file", written_}, {"tokenizer", tokenizer_fingerprint},
                     {"fingerprint", hex64(hash)}, {"counts", counts.to_json()}};
  OutputFile description(folder_ / "meta.json");
  description.write(meta.dump(2) + "\n");
  description.close();
}

}  // namespace fovea
