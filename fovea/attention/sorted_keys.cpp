// Pages of keys by class.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/sorted_keys.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "fovea/attention/fused_call.h"
#include "fovea/attention/huge_pages.h"

namespace fovea {

// The slot of the next token of a set.
int32_t SortedKeys::new_slot(Row& row, uint64_t members) {
  const auto [found, is_new] =
      row.class_of_set.try_emplace(members, static_cast<int32_t>(row.classes.size()));
  if (is_new) row.classes.push_back({.members = members, .pages = {}});
  Class& own = row.classes[found->second];
  if (own.used == kPage) {
    if (row.free_pages.empty()) row.free_pages.push_back(row.pages++);
    own.pages.push_back(row.free_pages.back());
    row.free_pages.pop_back();
    own.used = 0;
  }
  const auto slot = static_cast<int32_t>(own.pages.back() * kPage + own.used++);
  row.class_of.push_back(found->second);
  row.slot_of.push_back(slot);
  return slot;
}

// Room for the pages of every row of the batch.
void SortedKeys::make_room(const at::Tensor& k, const at::Tensor& v) {
  int64_t slots = 0;
  for (const Row& row : rows_) slots = std::max<int64_t>(slots, row.pages * kPage);
  const int64_t have = keys_bsgd_.defined() ? keys_bsgd_.size(1) : 0;
  if (slots <= have) return;
  const int64_t size = std::max(slots, have + have / 2);
  const auto grown = [&](at::Tensor& to, const at::Tensor& like) {
    const std::vector<int64_t> shape{like.size(0), size, like.size(1), like.size(3)};
    const int64_t bytes = shape[0] * shape[1] * shape[2] * shape[3] * like.element_size();
    at::Tensor larger = HugePages(HugePages::padded(bytes)).take(shape, like.scalar_type()).zero_();
    if (to.defined()) larger.narrow(1, 0, have).copy_(to);
    to = std::move(larger);
  };
  grown(keys_bsgd_, k);
  grown(values_bsge_, v);
}

void SortedKeys::append(const at::Tensor& k, const at::Tensor& v, const at::Tensor& members_bn) {
  const at::NoGradGuard no_gradient;
  const int64_t batch = k.size(0), count = k.size(2);
  rows_.resize(static_cast<size_t>(batch));
  const at::Tensor members = members_bn.cpu().contiguous();
  std::vector<at::Tensor> slots;
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t* const sets = members.const_data_ptr<int64_t>() + b * count;
    std::vector<int64_t> of_row;
    for (int64_t n = 0; n < count; ++n)
      of_row.push_back(new_slot(rows_[static_cast<size_t>(b)], static_cast<uint64_t>(sets[n])));
    slots.push_back(at::tensor(of_row, at::kLong));
  }
  make_room(k, v);
  for (int64_t b = 0; b < batch; ++b) {
    const at::Tensor& to = slots[static_cast<size_t>(b)];
    keys_bsgd_[b].index_copy_(0, to, k[b].transpose(0, 1));
    values_bsge_[b].index_copy_(0, to, v[b].transpose(0, 1));
  }
}

void SortedKeys::truncate(int64_t length) {
  for (Row& row : rows_) {
    while (std::ssize(row.slot_of) > length) {  // a class loses what came last
      Class& own = row.classes[row.class_of.back()];
      if (--own.used == 0) {
        row.free_pages.push_back(own.pages.back());
        own.pages.pop_back();
        own.used = kPage;
      }
      row.class_of.pop_back();
      row.slot_of.pop_back();
    }
  }
}

SortedKeys SortedKeys::clone() const {
  SortedKeys copy = *this;
  if (keys_bsgd_.defined()) {
    copy.keys_bsgd_ = keys_bsgd_.clone();
    copy.values_bsge_ = values_bsge_.clone();
  }
  return copy;
}

int64_t SortedKeys::bytes() const {
  return keys_bsgd_.defined() ? static_cast<int64_t>(keys_bsgd_.nbytes() + values_bsge_.nbytes())
                              : 0;
}

// The classes that the last token meets, page by page, then what else is near or a sink.
std::vector<int32_t> SortedKeys::slots_seen(const FocusSpec& spec, const Row& row) const {
  const int64_t length = std::ssize(row.slot_of);
  const uint64_t own = row.classes[row.class_of.back()].members;
  const int64_t near = std::max<int64_t>(length - spec.window, 0);
  const int64_t sinks = std::min(spec.sinks, near);
  int64_t most = sinks + length - near;
  for (const Class& other : row.classes) {
    if ((other.members & own) != 0) most += std::ssize(other.pages) * kPage;
  }
  std::vector<int32_t> seen(static_cast<size_t>(most));
  int32_t* to = seen.data();
  for (const Class& other : row.classes) {
    if ((other.members & own) == 0) continue;
    for (const int32_t page : other.pages) {  // whole, then less the free end of the last one
      std::iota(to, to + kPage, static_cast<int32_t>(page * kPage));
      to += kPage;
    }
    to -= kPage - other.used;
  }
  const auto add_apart = [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      if ((row.classes[row.class_of[n]].members & own) == 0) *to++ = row.slot_of[n];
    }
  };
  add_apart(0, sinks);
  add_apart(near, length);
  seen.resize(static_cast<size_t>(to - seen.data()));
  return seen;
}

std::optional<AttentionResult> SortedKeys::attend(const AttentionSpec& spec, const at::Tensor& q,
                                                  const AttentionTensors& tensors,
                                                  const AttentionContext& context) const {
  const at::Tensor k = keys_bsgd_.transpose(1, 2), v = values_bsge_.transpose(1, 2);
  if (q.size(2) != 1 || !is_decoding(spec, q, k, v, tensors, context)) return std::nullopt;
  std::vector<std::vector<int32_t>> seen;
  for (const Row& row : rows_) seen.push_back(slots_seen(spec.focus, row));
  AttentionResult result = run_decoding(spec, q, k, v, tensors, context, seen);
  result.path.name = "grouped";
  result.path.plan = "sorted";
  result.path.reason = fmt::format("one query: {} of {} keys, sorted by their set of groups",
                                   seen[0].size(), length());
  return result;
}

}  // namespace fovea
