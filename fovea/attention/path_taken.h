// PathTaken: the path that computed a call, its plan, and the reason.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace fovea {

/// `fused`, `grouped`: our kernels; `torch_sdpa`: torch's operation; `reference`: plain tensor
/// operations; `decode`: a call from a cache, of which PathTaken::inner is the path.
/// `fused_decoder` and `by_layers` are those of Transformer::decode(). `none`: nothing was
/// computed.
enum class PathName {
  none,
  fused,
  grouped,
  torch_sdpa,
  reference,
  decode,
  fused_decoder,
  by_layers
};
std::span<const std::string_view> enum_names(PathName);

/// Whether the path runs on our kernels.
constexpr bool is_ours(PathName name) {
  return name == PathName::fused || name == PathName::grouped;
}

/// One word about a plan: a restriction of the mask, the plan of grouped kernels, or how the
/// reference or a decoding call goes over the keys.
enum class PlanWord : uint8_t {
  full,
  causal,
  documents,
  strided,
  fixed,
  window,
  alibi,
  block_sparse,
  classes,
  dense,
  groups,
  lists,
  blocks,
  scan,
  sorted
};
std::span<const std::string_view> enum_names(PlanWord);

/// The words about a plan, in the order of the enum.
class PlanName {
 public:
  constexpr PlanName() = default;
  constexpr PlanName(PlanWord word) : bits_(uint32_t{1} << static_cast<int>(word)) {}

  constexpr void add(PlanName other) { bits_ |= other.bits_; }
  constexpr bool has(PlanWord word) const { return (bits_ & PlanName(word).bits_) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  /// "documents+window"; "" for no word.
  std::string text() const;
  constexpr bool operator==(const PlanName&) const = default;

 private:
  uint32_t bits_ = 0;
};

/// Why a path was taken.
struct PathReason {
  /// `refused`: the paths before it could not run the call, `detail` says why.
  enum class Kind {
    none,
    requested,
    pointwise,
    few_queries,
    one_query,
    cheapest_plan,
    clusters,
    block_pairs,
    refused
  };
  Kind kind = Kind::none;
  std::string detail = {};  ///< numbers or a reason; "" where the kind says it all

  std::string text() const;
};

/// Keys that a row of a head reads, mean over heads: of all rows, and of the last ones of the
/// batch.
struct KeysRead {
  double row = 0.0, last_row = 0.0;
};

struct PathTaken {
  PathName name = PathName::none;
  PathName inner = PathName::none;  ///< of `decode`: the path over the cached keys
  std::string isa = {};             ///< instruction set of our kernels, "" elsewhere
  PlanName plan = {};
  PathReason reason = {};
  /// Tiles of 64 x 32 pairs that a head visits, and those that a causal mask has: means over batch
  /// and heads. Counted in grouped plans where the call asks for it; 0 elsewhere.
  double tiles = 0.0, causal_tiles = 0.0;
  KeysRead keys_read = {};  ///< of texts under MagicPIG or routing; 0 elsewhere

  bool is_ours() const { return fovea::is_ours(name == PathName::decode ? inner : name); }
  /// "causal"; "fused causal" for a call from a cache.
  std::string plan_text() const;
  /// "fused causal", "decode grouped scan".
  std::string text() const;
};

}  // namespace fovea
