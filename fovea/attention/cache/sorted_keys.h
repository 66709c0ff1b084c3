// Keys and values of a cache sorted by class, so that decoding hard Focus reads runs (spec 11.5).
//
// Keys and values of the cache are copied, head by head, to pages. Each page belongs to one set of
// groups. A ring holds the latest rows in the order of the text. A query reads the pages of the
// sets that meet its own, up to the window; then the ring; then the sinks, by their index. It
// compares no other memberships. The copy follows its cache (append, truncate, clone). It is not
// saved: it can be made again at any time.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "fovea/attention/cache/cache.h"

namespace fovea {

class SortedKeys {
 public:
  /// Keys from which on reading sorted keys beats reading what a scan finds
  /// (docs/kernels/grouped.md).
  static constexpr int64_t kLeastKeys = 4096;

  /// Whether the tokens [b, n] have few enough sets of groups. With at least 32 rows a set, pages
  /// have room for about three times the rows at most, and reading them beats a scan.
  static bool pays(const at::Tensor& members_bn);

  /// `window`: of the queries to come, for the size of the ring; another one is as right but
  /// slower.
  explicit SortedKeys(int64_t window = 128, int64_t batch = 1);

  /// Appends keys [1, g, n, d], values [1, g, n, e] and memberships [1, n] of the next n tokens of
  /// a sequence.
  void append(int64_t b, const at::Tensor& k_1gnd, const at::Tensor& v_1gne,
              const at::Tensor& members_1n);
  /// Forgets tokens >= length of a sequence.
  void truncate(int64_t b, int64_t length);
  SortedKeys clone() const;
  int64_t batch() const { return std::ssize(rows_); }
  int64_t length(int64_t b) const { return rows_[b].length(); }
  int64_t bytes() const;
  /// As pays(members), of all tokens so far.
  bool pays() const;

  /// One token of each sequence. The caller writes its key and value into next_row() of keys() and
  /// values(), which are valid until the next append. The calls come after an append() of all
  /// earlier tokens, in this order: make_room_for_token(), append_token() with the groups of each
  /// sequence's token, keep_token(). The last one copies the rows to their places, here and into
  /// the cache's last rows.
  void make_room_for_token();
  CachedRows keys() const { return rows_of(keys_bgsd_); }
  CachedRows values() const { return rows_of(values_bgse_); }
  const at::Tensor& keys_bgsd() const { return keys_bgsd_; }
  const at::Tensor& values_bgse() const { return values_bgse_; }
  int64_t next_row(int64_t b) const { return length(b) % recent_; }
  void append_token(std::span<const uint64_t> members);
  void keep_token(const CachedRows& cached_keys, const CachedRows& cached_values);
  /// Rows of keys() that the last token of sequence b sees.
  std::vector<int32_t> slots_seen(const FocusSpec& spec, int64_t b) const;

 private:
  static constexpr int64_t kPage = 64;
  static constexpr int64_t kLeastRows = 32;       // a set
  static constexpr int64_t kMostRecent = 1024;    // tokens of a ring
  static constexpr int64_t kMostReserved = 1024;  // rows that a class has before it needs them

  // One set of groups: its pages in order, of which `count` rows are in use.
  struct Class {
    uint64_t members = 0;
    std::vector<int32_t> pages;
    int64_t count = 0;
    int64_t coming = 0;  // of new_slots()
    int64_t room() const { return std::ssize(pages) * kPage; }
  };
  // One row of the batch.
  struct Row {
    std::vector<Class> classes;
    std::unordered_map<uint64_t, int32_t> class_of_set;
    std::vector<int32_t> slot_of, class_of;  // by token
    std::vector<int32_t> free_pages;
    int32_t pages = 0;
    int64_t recent_begin = 0;  // token n stands at n % recent_ of the ring from this one on
    int64_t length() const { return std::ssize(slot_of); }
  };
  static int32_t class_of(Row& row, uint64_t members);
  static void reserve(Row& row, Class& of, int64_t rows);
  static std::vector<int64_t> new_slots(Row& row, std::span<const int64_t> members);
  void make_room(const at::Tensor& k, const at::Tensor& v, int64_t spare_pages = 0);
  static CachedRows rows_of(const at::Tensor& x_bgsd);
  void keep_recent(Row& row) const;
  static void write(at::Tensor& to, const at::Tensor& x_bgnd, int64_t b, int64_t first,
                    std::span<const int64_t> slots);

  at::Tensor keys_bgsd_, values_bgse_;  // by slot; the first `recent_` are the ring
  std::vector<Row> rows_;
  int64_t recent_ = 0;  // slots of the ring
};

}  // namespace fovea
