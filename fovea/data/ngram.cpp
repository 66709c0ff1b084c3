// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/data/ngram.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <span>

#include "fovea/base/error.h"

namespace fovea {
namespace {

constexpr size_t kBytes = 256;

struct Row {
  double total = 0, kinds = 0;  // count of all bytes, number of different ones
};

template <class Count>
Row sum_row(std::span<const Count> counts) {
  uint64_t total = 0;
  uint32_t kinds = 0;
  for (const Count count : counts) {
    total += count;
    kinds += count > 0;
  }
  return {static_cast<double>(total), static_cast<double>(kinds)};
}

// One step of the interpolation; `lower` is the probability with the shorter context.
template <class Count>
double interpolate(std::span<const Count> counts, uint8_t byte, double lower) {
  const Row row = sum_row(counts);
  return row.total > 0
             ? (static_cast<double>(counts[byte]) + row.kinds * lower) / (row.total + row.kinds)
             : lower;
}

/// Calls visit(older, newer, byte) for every byte of the counted targets: `newer` stands before it
/// in its row and document, `older` before that; -1 where the row or document began, `bos` for the
/// mark of a beginning.
template <class Visit>
void for_each_target(const Batch& batch, const Tokenizer& tokenizer, int bos, const Visit& visit) {
  int older = -1, newer = -1;
  const auto push = [&](int symbol) {
    older = newer;
    newer = symbol;
  };
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    const bool row_begins = i % static_cast<size_t>(batch.length) == 0;
    if (row_begins || batch.documents[i] != batch.documents[i - 1]) older = newer = -1;
    if (batch.tokens[i] == tokenizer.bos()) push(bos);
    for (const char c : tokenizer.piece(batch.tokens[i])) push(static_cast<uint8_t>(c));
    if (batch.targets[i] < 0) continue;
    int before = older, last = newer;
    for (const char c : tokenizer.piece(batch.targets[i])) {
      const auto byte = static_cast<uint8_t>(c);
      visit(before, last, byte);
      before = last;
      last = byte;
    }
  }
}

}  // namespace

double NgramScore::bits_per_byte() const {
  return bytes > 0 ? nats / (static_cast<double>(bytes) * std::numbers::ln2) : 0.0;
}

ByteNgrams::ByteNgrams()
    : pairs_(kSymbols * kBytes), triples_(size_t{kSymbols} * kSymbols * kBytes), singles_(kBytes) {}

void ByteNgrams::add(std::string_view text, bool begins) {
  if (begins) {
    before_last_ = -1;
    last_ = kBos;
  }
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    count(before_last_, last_, byte);
    before_last_ = last_;
    last_ = byte;
  }
}

void ByteNgrams::add(const Batch& batch, const Tokenizer& tokenizer) {
  for_each_target(batch, tokenizer, kBos,
                  [&](int older, int newer, uint8_t byte) { count(older, newer, byte); });
}

void ByteNgrams::count(int older, int newer, uint8_t byte) {
  ++singles_[byte];
  if (newer >= 0) ++pairs_[static_cast<size_t>(newer) * kBytes + byte];
  if (older >= 0) {
    const size_t row = static_cast<size_t>(older) * kSymbols + static_cast<size_t>(newer);
    ++triples_[row * kBytes + byte];
  }
}

int64_t ByteNgrams::bytes() const {
  return static_cast<int64_t>(std::accumulate(singles_.begin(), singles_.end(), uint64_t{0}));
}

double ByteNgrams::probability(int order, int older, int newer, uint8_t byte) const {
  double p = interpolate(std::span<const uint64_t>(singles_), byte, 1.0 / kBytes);
  if (order >= 2 && newer >= 0) {
    p = interpolate(std::span(pairs_).subspan(static_cast<size_t>(newer) * kBytes, kBytes), byte,
                    p);
    if (order >= 3 && older >= 0) {
      const size_t row = static_cast<size_t>(older) * kSymbols + static_cast<size_t>(newer);
      p = interpolate(std::span(triples_).subspan(row * kBytes, kBytes), byte, p);
    }
  }
  return p;
}

double ByteNgrams::log_probability(int order, std::string_view context, bool at_start,
                                   uint8_t byte) const {
  require<ConfigError>(order >= 1 && order <= max_order, "n-gram",
                       "expected an order from 1 to {}; got {}", max_order, order);
  const auto symbol = [&](size_t back) {  // back 1 is the newest
    if (back <= context.size())
      return static_cast<int>(static_cast<uint8_t>(context[context.size() - back]));
    return at_start && back == context.size() + 1 ? kBos : -1;
  };
  return std::log(probability(order, symbol(2), symbol(1), byte));
}

NgramScore ByteNgrams::score(int order, const ValidationSet& set,
                             const Tokenizer& tokenizer) const {
  require<ConfigError>(order >= 1 && order <= max_order, "n-gram",
                       "expected an order from 1 to {}; got {}", max_order, order);
  NgramScore score;
  for (const Batch& batch : set.batches) {
    for_each_target(batch, tokenizer, kBos, [&](int older, int newer, uint8_t byte) {
      score.nats -= std::log(probability(order, older, newer, byte));
      ++score.bytes;
    });
  }
  return score;
}

ByteNgrams fit_ngrams(const Corpus& corpus) {
  constexpr int64_t kPart = 1 << 16;  // tokens; bounds the buffers whatever a document's length
  ByteNgrams ngrams;
  std::vector<int32_t> tokens;
  std::string text;
  for (const CorpusSource& source : corpus.sources()) {
    for (const DocumentSpan& document : source.train) {
      for (int64_t first = 0; first < document.length; first += kPart) {
        tokens.resize(static_cast<size_t>(std::min(kPart, document.length - first)));
        source.store.read(document.offset + first, tokens);
        text.clear();
        for (const int32_t token : tokens) text.append(corpus.tokenizer().piece(token));
        ngrams.add(text, first == 0);
      }
    }
  }
  return ngrams;
}

}  // namespace fovea
