// Pages of keys by class.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/cache/sorted_keys.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <unordered_set>

#include "fovea/attention/cache/huge_pages.h"

namespace fovea {

SortedKeys::SortedKeys(int64_t window, int64_t batch)
    : recent_((std::clamp(window, kPage, kMostRecent) + kPage - 1) / kPage * kPage) {
  rows_.resize(static_cast<size_t>(batch), {.pages = static_cast<int32_t>(recent_ / kPage)});
}

bool SortedKeys::pays(const at::Tensor& members_bn) {
  const at::Tensor members = members_bn.cpu().contiguous();
  const int64_t n = members.size(1);
  for (int64_t b = 0; b < members.size(0); ++b) {
    const int64_t* const sets = members.const_data_ptr<int64_t>() + b * n;
    std::unordered_set<int64_t> found;
    for (int64_t i = 0; i < n; ++i) {
      found.insert(sets[i]);
      if (std::ssize(found) * kLeastRows > n) return false;
    }
  }
  return true;
}

bool SortedKeys::pays() const {
  return std::ranges::all_of(
      rows_, [](const Row& row) { return std::ssize(row.classes) * kLeastRows <= row.length(); });
}

int32_t SortedKeys::class_of(Row& row, uint64_t members) {
  const auto [found, is_new] =
      row.class_of_set.try_emplace(members, static_cast<int32_t>(row.classes.size()));
  if (is_new) row.classes.push_back({.members = members, .pages = {}});
  return found->second;
}

// Pages for so many rows, what nobody has had yet in one piece.
void SortedKeys::reserve(Row& row, Class& of, int64_t rows) {
  while (of.room() < rows) {
    if (row.free_pages.empty()) {
      of.pages.push_back(row.pages++);
    } else {
      of.pages.push_back(row.free_pages.back());
      row.free_pages.pop_back();
    }
  }
}

// Slots of the next tokens. What comes at once lies in one piece; behind it a class grows by an
// eighth.
std::vector<int64_t> SortedKeys::new_slots(Row& row, std::span<const int64_t> members) {
  std::vector<int64_t> slots;
  const size_t begin = row.class_of.size();
  for (const int64_t set : members) {
    row.class_of.push_back(class_of(row, static_cast<uint64_t>(set)));
    ++row.classes[row.class_of.back()].coming;
  }
  for (size_t n = begin; n < row.class_of.size(); ++n) {
    Class& of_key = row.classes[row.class_of[n]];
    if (of_key.count == of_key.room())
      reserve(row, of_key,
              of_key.count + std::max(of_key.coming, std::min(of_key.room() / 8, kMostReserved)));
    --of_key.coming;
    const int64_t slot = of_key.pages[of_key.count / kPage] * kPage + of_key.count % kPage;
    ++of_key.count;
    row.slot_of.push_back(static_cast<int32_t>(slot));
    slots.push_back(slot);
  }
  return slots;
}

// Room for the pages of every row of the batch, and some more.
void SortedKeys::make_room(const at::Tensor& k, const at::Tensor& v, int64_t spare_pages) {
  int64_t slots = 0;
  for (const Row& row : rows_) slots = std::max<int64_t>(slots, (row.pages + spare_pages) * kPage);
  const int64_t have = keys_bgsd_.defined() ? keys_bgsd_.size(2) : 0;
  if (slots <= have) return;
  const int64_t size = std::max(slots, have + have / 2);
  const auto grown = [&](at::Tensor& to, const at::Tensor& like) {
    const std::vector<int64_t> shape{std::ssize(rows_), like.size(1), size, like.size(3)};
    const int64_t bytes = shape[0] * shape[1] * shape[2] * shape[3] * like.element_size();
    at::Tensor larger =
        HugePages(HugePages::padded(bytes)).allocate(shape, like.scalar_type()).zero_();
    if (to.defined()) larger.narrow(2, 0, have).copy_(to);
    to = std::move(larger);
  };
  grown(keys_bgsd_, k);
  grown(values_bgse_, v);
}

// Tokens `first` ... of x [1, g, n, d], of one type and with contiguous rows, to slots of row b.
void SortedKeys::write(at::Tensor& to, const at::Tensor& x, int64_t b, int64_t first,
                       std::span<const int64_t> slots) {
  const auto size = static_cast<int64_t>(to.element_size());
  const auto width = static_cast<size_t>(to.size(3) * size);
  for (int64_t g = 0; g < to.size(1); ++g) {
    char* const head = static_cast<char*>(to.mutable_data_ptr()) +
                       (b * to.size(1) + g) * to.size(2) * static_cast<int64_t>(width);
    const char* row = static_cast<const char*>(x.const_data_ptr()) +
                      (g * x.stride(1) + first * x.stride(2)) * size;
    for (const int64_t slot : slots) {
      std::memcpy(head + slot * static_cast<int64_t>(width), row, width);
      row += x.stride(2) * size;
    }
  }
}

void SortedKeys::keep_recent(Row& row) const {
  row.recent_begin = std::max(row.recent_begin, row.length() - recent_);
}

void SortedKeys::append(int64_t b, const at::Tensor& k, const at::Tensor& v,
                        const at::Tensor& members_1n) {
  const at::NoGradGuard no_gradient;
  const int64_t count = k.size(2);
  const at::Tensor members = members_1n.cpu().contiguous();
  Row& row = rows_[b];
  const std::vector<int64_t> slots =
      new_slots(row, std::span(members.const_data_ptr<int64_t>(), static_cast<size_t>(count)));
  make_room(k, v);
  const int64_t length = row.length();
  std::vector<int64_t> in_ring;  // the latest ones
  for (int64_t n = std::max(length - count, length - recent_); n < length; ++n)
    in_ring.push_back(n % recent_);
  for (auto [to, from] : {std::pair{&keys_bgsd_, &k}, {&values_bgse_, &v}}) {
    const at::Tensor given = from->to(to->scalar_type()),
                     rows = given.stride(3) == 1 ? given : given.contiguous();
    write(*to, rows, b, 0, slots);
    write(*to, rows, b, count - std::ssize(in_ring), in_ring);
  }
  keep_recent(row);
}

CachedRows SortedKeys::rows_of(const at::Tensor& x) {
  return {.data = x.data_ptr(),
          .batch = x.stride(0),
          .row = x.stride(2),
          .head = x.stride(1),
          .sequences = {}};
}

void SortedKeys::make_room_for_token() {
  make_room(keys_bgsd_, values_bgse_, kMostReserved / kPage + 1);
}

void SortedKeys::append_token(std::span<const uint64_t> members) {
  for (size_t b = 0; b < rows_.size(); ++b) {
    const auto set = static_cast<int64_t>(members[b]);
    new_slots(rows_[b], {&set, 1});
    keep_recent(rows_[b]);
  }
}

void SortedKeys::keep_token(const CachedRows& cached_keys, const CachedRows& cached_values) {
  const auto copy = [&](at::Tensor& sorted, const CachedRows& cached) {
    const auto item = static_cast<int64_t>(sorted.element_size());
    const auto width = static_cast<size_t>(sorted.size(3) * item);
    const auto at = [&](const CachedRows& x, int64_t b, int64_t g, int64_t row) {
      return static_cast<char*>(x.data) + (b * x.batch + g * x.head + row * x.row) * item;
    };
    const CachedRows here = rows_of(sorted);
    for (int64_t b = 0; b < sorted.size(0); ++b) {
      for (int64_t g = 0; g < sorted.size(1); ++g) {
        const Row& of = rows_[b];
        const KeptRows& kept = cached.sequences[b];
        const char* const row = at(here, b, g, (of.length() - 1) % recent_);
        std::memcpy(at(here, b, g, of.slot_of.back()), row, width);
        std::memcpy(at(cached, b, g, kept.begin + kept.rows - 1), row, width);
      }
    }
  };
  copy(keys_bgsd_, cached_keys);
  copy(values_bgse_, cached_values);
}

void SortedKeys::truncate(int64_t b, int64_t length) {
  Row& row = rows_[b];
  row.recent_begin = std::min(row.recent_begin, length);  // what comes is written again
  for (; row.length() > length; row.slot_of.pop_back()) {
    --row.classes[row.class_of.back()].count;  // a class loses what came last
    row.class_of.pop_back();
  }
  for (Class& of : row.classes) {
    for (; of.room() - kPage >= of.count; of.pages.pop_back())
      row.free_pages.push_back(of.pages.back());
  }
}

SortedKeys SortedKeys::clone() const {
  SortedKeys copy = *this;
  if (keys_bgsd_.defined()) {
    copy.keys_bgsd_ = keys_bgsd_.clone();
    copy.values_bgse_ = values_bgse_.clone();
  }
  return copy;
}

int64_t SortedKeys::bytes() const {
  return keys_bgsd_.defined() ? static_cast<int64_t>(keys_bgsd_.nbytes() + values_bgse_.nbytes())
                              : 0;
}

// The classes that the last token meets, page by page, then sinks and what else is near.
std::vector<int32_t> SortedKeys::slots_seen(const FocusSpec& spec, int64_t b) const {
  const Row& row = rows_[static_cast<size_t>(b)];
  const int64_t length = std::ssize(row.slot_of);
  const uint64_t query_members = row.classes[row.class_of.back()].members;
  const int64_t near = std::max<int64_t>(length - spec.window, 0);
  const int64_t sinks = std::min(spec.sinks, near), recent = std::max(near, row.recent_begin);
  const auto meets = [&](int64_t n) {
    return (row.classes[row.class_of[n]].members & query_members) != 0;
  };
  std::vector<int32_t> in_ring(row.classes.size());  // the last ones of each class
  for (int64_t n = recent; n < length; ++n) ++in_ring[row.class_of[n]];
  int64_t most = sinks + length - near;
  for (const Class& other : row.classes) {
    if ((other.members & query_members) != 0) most += std::ssize(other.pages) * kPage;
  }
  std::vector<int32_t> seen(static_cast<size_t>(most));
  int32_t* to = seen.data();
  for (size_t c = 0; c < row.classes.size(); ++c) {
    const Class& other = row.classes[c];
    if ((other.members & query_members) == 0) continue;
    int64_t remaining = other.count - in_ring[c];
    for (auto page = other.pages.begin(); remaining > 0; ++page, remaining -= kPage) {
      std::iota(to, to + kPage, static_cast<int32_t>(*page * kPage));
      to += std::min(kPage, remaining);  // what is too much is written over
    }
  }
  const auto add_apart = [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      if (!meets(n)) *to++ = row.slot_of[n];
    }
  };
  add_apart(0, sinks);
  add_apart(near, recent);
  for (int64_t n = recent; n < length; ++n) *to++ = static_cast<int32_t>(n % recent_);
  seen.resize(static_cast<size_t>(to - seen.data()));
  return seen;
}

}  // namespace fovea
