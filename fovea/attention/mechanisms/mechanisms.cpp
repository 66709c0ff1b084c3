// The list of mechanisms, and what is derived from it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanism.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "fovea/attention/call.h"
#include "fovea/attention/mechanisms/differential.h"
#include "fovea/attention/mechanisms/dropout.h"
#include "fovea/attention/mechanisms/mask.h"
#include "fovea/attention/mechanisms/sink_logit.h"
#include "fovea/attention/mechanisms/soft_cap.h"
#include "fovea/attention/places.h"
#include "fovea/attention/specs/kv_shift.h"
#include "fovea/attention/specs/longformer.h"
#include "fovea/attention/specs/magic_pig.h"
#include "fovea/attention/specs/performer.h"
#include "fovea/attention/specs/sparq.h"
#include "fovea/attention/specs/streaming.h"
#include "fovea/attention/stream_spec.h"
#include "fovea/base/error.h"

namespace fovea {

std::span<const Mechanism* const> mechanisms() {
  static const Mechanism* const all[] = {
      &kv_shift_mechanism(),     &temperature_mechanism(),   &soft_cap_mechanism(),
      &multi_token_mechanism(),  &head_mix_mechanism(),      &own_stage_mechanism(),
      &focus_mechanism(),        &routing_mechanism(),       &block_pairs_mechanism(),
      &longformer_mechanism(),   &streaming_mechanism(),     &sparq_mechanism(),
      &magic_pig_mechanism(),    &position_bias_mechanism(), &mask_mechanism(),
      &performer_mechanism(),    &sink_logit_mechanism(),    &dropout_mechanism(),
      &differential_mechanism(), &head_output_mechanism(),
  };
  return all;
}

std::span<const StageFormula> stage_formulas(StageId stage) {
  static const auto by_stage = [] {
    std::vector<std::vector<StageFormula>> all(attention_stages().size());
    for (const Mechanism* mechanism : mechanisms())
      for (const StageFormula& formula : mechanism->formulas)
        all[static_cast<size_t>(formula.stage)].push_back(formula);
    return all;
  }();
  return by_stage[static_cast<size_t>(stage)];
}

EarlierRows earlier_rows(const AttentionSpec& spec) {
  EarlierRows earlier;
  for (const Mechanism* mechanism : mechanisms()) {
    for (const StageFormula& formula : mechanism->formulas) {
      if (formula.earlier_rows == nullptr) continue;
      const int64_t rows = formula.earlier_rows(spec);
      earlier.all += rows;
      if (formula.stage > StageId::softmax) earlier.after += rows;
    }
  }
  return earlier;
}

int64_t columns_beside(const AttentionSpec& spec) {
  int64_t columns = 0;
  for (const Mechanism* mechanism : mechanisms())
    for (const StageFormula& formula : mechanism->formulas)
      if (formula.columns_beside != nullptr)
        columns = std::max(columns, formula.columns_beside(spec));
  return columns;
}

std::vector<StageUse> stage_uses(const AttentionSpec& spec) {
  std::vector<StageUse> all;
  for (const Mechanism* mechanism : mechanisms())
    std::ranges::move(mechanism->uses(spec), std::back_inserter(all));
  return all;
}

AttentionSpec without_added_mechanisms(AttentionSpec spec) {
  for (const Mechanism* mechanism : mechanisms())
    if (mechanism->remove != nullptr) mechanism->remove(spec);
  return spec;
}

KeyRule key_rule(const AttentionSpec& spec) {
  for (const Mechanism* mechanism : mechanisms()) {
    if (mechanism->key_rule == nullptr) continue;
    if (const std::optional<KeyRule> rule = mechanism->key_rule(spec)) return *rule;
  }
  return KeyRule::mask;
}

void add_mechanism_streams(const AttentionSpec& spec, const StreamSpec& keys,
                           std::vector<StreamSpec>& all) {
  for (const Mechanism* mechanism : mechanisms())
    if (mechanism->add_streams != nullptr) mechanism->add_streams(spec, keys, all);
}

void rewrite_keys(AttentionCall& call, CachedStreams* cache) {
  for (const Mechanism* mechanism : mechanisms())
    if (mechanism->rewrite_keys != nullptr) mechanism->rewrite_keys(call, cache);
}

TokenUse token_use(const AttentionSpec& spec) {
  TokenUse all;
  for (const Mechanism* mechanism : mechanisms()) {
    TokenUse one;
    if (mechanism->token_of != nullptr) {
      one = mechanism->token_of(spec);
    } else if (std::vector<StageUse> used = mechanism->uses(spec); !used.empty()) {
      one = {mechanism->token, std::move(used.front().setting)};
    }
    if (one.form > all.form) all = std::move(one);
  }
  return all;
}

namespace {

// The mechanism that `key_pattern` is of.
const Mechanism* patterned_mechanism(const AttentionSpec& spec) {
  for (const Mechanism* mechanism : mechanisms())
    if (mechanism->pattern != nullptr && mechanism->key_rule(spec)) return mechanism;
  return nullptr;
}

void clear_tensors(const Mechanism& mechanism, AttentionCall& call) {
  for (const TensorSlot& slot : mechanism.tensors) call.tensors.*slot.member = at::Tensor();
}

}  // namespace

const KeyPattern* key_pattern(const AttentionSpec& spec) {
  const Mechanism* mechanism = patterned_mechanism(spec);
  return mechanism != nullptr ? mechanism->pattern : nullptr;
}

bool reads_plain_heads(const AttentionSpec& spec) {
  return std::ranges::any_of(mechanisms(), [&](const Mechanism* mechanism) {
    return mechanism->plain_heads && mechanism->key_rule(spec);
  });
}

std::optional<FixedChoice> fixed_choice(const AttentionSpec& spec, double visible) {
  for (const Mechanism* mechanism : mechanisms()) {
    if (mechanism->fixed_choice == nullptr) continue;
    if (const auto choice = mechanism->fixed_choice(spec, visible)) return choice;
  }
  return std::nullopt;
}

at::Tensor counted_distances(const AttentionSpec& spec, const Places& places) {
  for (const Mechanism* mechanism : mechanisms()) {
    if (mechanism->distances == nullptr) continue;
    if (at::Tensor counted = mechanism->distances(spec, places); counted.defined()) return counted;
  }
  return distances(places);
}

AttentionSpec in_mask_terms(AttentionSpec spec) {
  if (const KeyPattern* pattern = key_pattern(spec)) pattern->to_mask(spec, /*plain=*/false);
  return spec;
}

AttentionCall in_mask_terms(AttentionCall call) {
  const Mechanism* mechanism = patterned_mechanism(call.spec);
  if (mechanism == nullptr) return call;
  mechanism->pattern->to_mask(call.spec, /*plain=*/false);
  if (!mechanism->key_rule(call.spec)) clear_tensors(*mechanism, call);
  return call;
}

AttentionCall without_neutral_mechanisms(AttentionCall call) {
  for (const Mechanism* mechanism : mechanisms()) {
    if (mechanism->is_neutral == nullptr || !mechanism->is_neutral(call)) continue;
    mechanism->remove(call.spec);
    clear_tensors(*mechanism, call);
  }
  return call;
}

namespace {

// Every call of attention() comes through here: text is made only for an error.
void check_slot(const TensorSlot& slot, const AttentionCall& call, const CallShape& shape) {
  const at::Tensor& x = call.tensors.*slot.member;
  const auto sizes = slot.sizes(call.spec, shape);
  if (!sizes) {
    require<ShapeError>(!x.defined(), "attention", "{} must be absent with {}; got {}", slot.name,
                        slot.setting(call.spec), shape_text(x));
    return;
  }
  require<ShapeError>(x.defined(), "attention",
                      "{} must be given, because the spec has {}; got none", slot.name,
                      slot.setting(call.spec));
  if (x.sizes() != at::IntArrayRef(*sizes))
    fail<ShapeError>("attention", "{} must be [{}]; got {}", slot.name, fmt::join(*sizes, ", "),
                     shape_text(x));
  require<ShapeError>(!slot.integers || x.scalar_type() == at::kLong, "attention",
                      "{} must be int64; got {}", slot.name, at::toString(x.scalar_type()));
}

}  // namespace

void check_mechanism_tensors(const AttentionCall& call) {
  const CallShape shape = call.shape();
  for (const Mechanism* mechanism : mechanisms()) {
    for (const TensorSlot& slot : mechanism->tensors) check_slot(slot, call, shape);
    if (mechanism->check_call != nullptr) mechanism->check_call(call);
  }
}

std::vector<std::pair<std::string_view, at::Tensor*>> AttentionTensors::named() {
  std::vector<std::pair<std::string_view, at::Tensor*>> all;
  for (const Mechanism* mechanism : mechanisms())
    for (const TensorSlot& slot : mechanism->tensors)
      all.emplace_back(slot.name, &(this->*slot.member));
  return all;
}

}  // namespace fovea
