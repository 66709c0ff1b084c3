// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/data/packing.h"

#include <algorithm>
#include <numeric>

#include "fovea/base/error.h"

namespace fovea {

PackedDocuments::PackedDocuments(std::span<const DocumentSpan> documents,
                                 std::vector<int32_t> order, const TokenStore& store,
                                 const Tokenizer& tokenizer, int64_t sequence_length,
                                 int64_t scored_tail)
    : documents_(documents),
      order_(std::move(order)),
      starts_(order_.size() + 1, 0),
      store_(store),
      bos_(tokenizer.bos()),
      eos_(tokenizer.eos()),
      // Where there is no pad token, any id will do: pads are a document of their own and carry no
      // loss.
      pad_(tokenizer.pad() >= 0 ? tokenizer.pad() : std::max(tokenizer.eos(), 0)),
      sequence_length_(sequence_length),
      scored_tail_(scored_tail) {
  const int64_t marks = (bos_ >= 0) + (eos_ >= 0);
  for (size_t i = 0; i < order_.size(); ++i) {
    starts_[i + 1] = starts_[i] + documents_[static_cast<size_t>(order_[i])].length + marks;
  }
}

// Tokens [first, first + out.size()) of a document with its marks.
void PackedDocuments::read_tokens(int64_t document, int64_t first, std::span<int32_t> out) const {
  const DocumentSpan& span = documents_[static_cast<size_t>(order_[static_cast<size_t>(document)])];
  const int64_t begin_marks = bos_ >= 0 ? 1 : 0;
  if (begin_marks == 1 && first == 0 && !out.empty()) {
    out[0] = bos_;
    out = out.subspan(1);
    first = 1;
  }
  const int64_t text_first = first - begin_marks;
  const int64_t count =
      std::clamp<int64_t>(span.length - text_first, 0, static_cast<int64_t>(out.size()));
  if (count > 0) store_.read(span.offset + text_first, out.first(static_cast<size_t>(count)));
  if (count < static_cast<int64_t>(out.size())) out[static_cast<size_t>(count)] = eos_;
}

void PackedDocuments::read_row(int64_t row, EndMarks end_marks, Batch& batch, int64_t at) const {
  const size_t base = static_cast<size_t>(at * batch.length);
  const auto part = [&](std::vector<int32_t>& values) {
    return std::span(values).subspan(base, static_cast<size_t>(batch.length));
  };
  const auto inputs = part(batch.tokens), targets = part(batch.targets),
             ids = part(batch.documents), positions = part(batch.positions);
  int64_t place = row * sequence_length_;
  const auto after = std::upper_bound(starts_.begin(), starts_.end(), place);
  int64_t document = (after - starts_.begin()) - 1;
  std::vector<int32_t> segment;
  int32_t id = 0;
  int64_t column = 0;
  for (; column < batch.length && place < tokens(); ++document, ++id) {
    const int64_t length = length_of(document),
                  first = place - starts_[static_cast<size_t>(document)];
    const int64_t count = std::min(length - first, batch.length - column);
    // One token more than the inputs, for the last target, unless the document ends here.
    segment.resize(static_cast<size_t>(std::min(count + 1, length - first)));
    read_tokens(document, first, segment);
    const auto start = static_cast<size_t>(column), size = static_cast<size_t>(count);
    std::copy_n(segment.begin(), size, inputs.begin() + column);
    std::copy(segment.begin() + 1, segment.end(), targets.begin() + column);
    const bool target_is_mark = eos_ >= 0 && end_marks == EndMarks::not_scored;
    if (target_is_mark && first + static_cast<int64_t>(segment.size()) == length &&
        segment.size() >= 2) {
      targets[start + segment.size() - 2] = -1;
    }
    if (scored_tail_ > 0) {
      const int64_t first_scored = length - (eos_ >= 0 ? 1 : 0) - scored_tail_;
      const int64_t before = std::clamp<int64_t>(first_scored - first - 1, 0, count);
      std::fill_n(targets.begin() + column, before, -1);
    }
    std::fill_n(ids.begin() + column, size, id);
    std::iota(positions.begin() + column, positions.begin() + column + count, 0);
    column += count;
    place += count;
  }
  std::fill(inputs.begin() + column, inputs.end(), pad_);
  std::fill(ids.begin() + column, ids.end(), id);
  std::iota(positions.begin() + column, positions.end(), 0);
}

Batch empty_batch(int64_t rows, int64_t length) {
  const auto size = static_cast<size_t>(rows * length);
  return {.rows = rows,
          .length = length,
          .tokens = std::vector<int32_t>(size),
          .targets = std::vector<int32_t>(size, -1),
          .documents = std::vector<int32_t>(size),
          .positions = std::vector<int32_t>(size),
          .sources = std::vector<int32_t>(static_cast<size_t>(rows))};
}

}  // namespace fovea
