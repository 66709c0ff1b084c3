// The path of StreamingLLM: recent keys by a window, start keys by the queries as rotated inside
// the cache (spec 4.6). Start keys join as few keys (joint.h), or as a second call by lse.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <limits>

#include "fovea/attention/mechanisms/streaming_rule.h"
#include "fovea/attention/paths/joint.h"
#include "fovea/attention/paths/parts.h"
#include "fovea/kernels/common/few_keys.h"

namespace fovea {
namespace {

// A document that no query is of.
constexpr int64_t kNobodys = std::numeric_limits<int64_t>::min();

struct Parts {
  AttentionCall recent, start;
};

Parts parts_of(const AttentionCall& call, const Places& places) {
  const StreamingSpec& streaming = call.spec.streaming;
  Parts parts{part_of(call, {.window = streaming.recent}), part_of(call, {})};
  parts.recent.spec.sink_logit = call.spec.sink_logit;
  parts.recent.tensors.sink_logit_h = call.tensors.sink_logit_h;
  parts.start.q = call.tensors.start_q_bhtd.to(call.q.scalar_type());
  set_places(parts.recent.context, places);
  set_places(parts.start.context, places);
  parts.start.context.query_positions_bt = places_in_cache(streaming, places.query_positions_bt);
  return parts;
}

// Keys of the other part get a document of their own.
void hide_by_document(Parts& parts, const Places& places, const at::Tensor& starts_bs) {
  const auto labels = [](const at::Tensor& documents, const at::Tensor& like) {
    return documents.defined() ? documents : at::zeros_like(like);
  };
  const at::Tensor queries = labels(places.query_documents_bt, places.query_positions_bt),
                   keys = labels(places.key_documents_bs, places.key_positions_bs);
  for (AttentionCall* part : {&parts.recent, &parts.start})
    part->context.query_documents_bt = queries;
  parts.recent.context.key_documents_bs = keys.masked_fill(starts_bs, kNobodys);
  parts.start.context.key_documents_bs = keys.masked_fill(starts_bs.logical_not(), kNobodys);
}

// The first `count` keys are the start keys.
void cut(Parts& parts, int64_t count) {
  const auto take = [](AttentionCall& part, int64_t first, int64_t rows) {
    part.k = part.k.narrow(2, first, rows);
    part.v = part.v.narrow(2, first, rows);
    at::Tensor& positions = part.context.key_positions_bs;
    positions = positions.narrow(1, first, rows);
  };
  take(parts.recent, count, parts.recent.k.size(2) - count);
  take(parts.start, 0, count);
}

// How many first keys are start keys, where all rows of the batch have the same one document and
// its start keys come first.
std::optional<int64_t> leading_start_keys(const Places& places, const at::Tensor& starts_bs) {
  if (places.key_documents_bs.defined() || starts_bs.size(0) != 1) return std::nullopt;
  const int64_t count = starts_bs.sum().item<int64_t>();
  return starts_bs.narrow(1, 0, count).all().item<bool>() ? std::optional(count) : std::nullopt;
}

AttentionResult join(const Parts& parts) {
  if (parts.start.k.size(2) == 0) return run_part(parts.recent);
  if (parts.recent.k.size(2) > 0) return merged(run_part(parts.recent), run_part(parts.start));
  AttentionCall all = parts.start;
  all.spec.sink_logit = parts.recent.spec.sink_logit;
  all.tensors.sink_logit_h = parts.recent.tensors.sink_logit_h;
  return run_part(all);
}

// Start keys as few keys of one operation, where all rows of the batch have the same ones.
std::optional<JointFew> few_starts(const AttentionCall& call, const Places& places,
                                   const at::Tensor& starts_bs) {
  const at::Tensor& documents = places.key_documents_bs;
  if (call.q.size(2) < kFewestJointRows || call.drops_weights() || starts_bs.size(0) != 1 ||
      places.query_positions_bt.size(0) != 1 || (documents.defined() && documents.size(0) != 1) ||
      call.spec.bias.kind != BiasSpec::Kind::none)
    return std::nullopt;
  JointFew few;
  std::vector<TokenPlace> keys = token_places(places.key_positions_bs, places.key_documents_bs, 0);
  const std::vector<TokenPlace> queries =
      token_places(places.query_positions_bt, places.query_documents_bt, 0);
  for (size_t n = 0; n < keys.size(); ++n)
    if (keys[n].position < call.spec.streaming.start)
      few.key_rows.push_back(static_cast<int64_t>(n));
  if (few.key_rows.empty() || std::ssize(few.key_rows) > kernels::kMostFewKeys ||
      few.key_rows.size() == keys.size())
    return std::nullopt;
  few.set_of_head.assign(static_cast<size_t>(call.spec.heads), 0);
  std::vector<uint64_t>& seen = few.seen.emplace_back(queries.size(), 0);
  for (size_t i = 0; i < queries.size(); ++i) {
    for (size_t n = 0; n < few.key_rows.size(); ++n) {
      const TokenPlace& key = keys[few.key_rows[n]];
      if (key.document == queries[i].document && key.position <= queries[i].position)
        seen[i] |= uint64_t{1} << n;
    }
  }
  return few;
}

AttentionResult run_in_place(const AttentionCall& call, const Parts& parts, JointFew few) {
  auto joint = c10::make_intrusive<JointCall>();
  joint->blocks.push_back(whole_block(parts.recent));
  joint->few = std::move(few);
  return run_joint({.q_bhtd = call.q,
                    .k_bgsd = call.k,
                    .v_bgse = call.v,
                    .few_q_bhtd = call.tensors.start_q_bhtd,
                    .tau_bt = call.tensors.tau_bt,
                    .sink_h = call.spec.sink_logit ? call.tensors.sink_logit_h : at::Tensor(),
                    .known_out_bhne = {},
                    .known_lse_bhn = {}},
                   std::move(joint));
}

std::optional<std::string> why_not_streaming(const AttentionCall& call) {
  if (call.q.numel() == 0 || call.k.size(2) == 0) return "nothing to compute";
  return why_not_pointwise(part_of(call, {.window = call.spec.streaming.recent}));
}

AttentionResult run_streaming(const AttentionCall& call) {
  const Places& places = call.places();
  const at::Tensor starts = places.key_positions_bs < call.spec.streaming.start;
  Parts parts = parts_of(call, places);
  // Dropout counts keys from the first one of the call: then no key goes.
  const std::optional<int64_t> count =
      call.drops_weights() ? std::nullopt : leading_start_keys(places, starts);
  std::optional<JointFew> few = few_starts(call, places, starts);
  // Without its first keys, tiles of a window would lie askew: few keys stay, and are hidden.
  if (count && !few) {
    cut(parts, *count);
  } else {
    hide_by_document(parts, places, starts);
  }
  AttentionResult result = few ? run_in_place(call, parts, std::move(*few)) : join(parts);
  result.path.plan = PlanWord::window;
  result.path.reason = {.kind = PathReason::Kind::pointwise};
  return result;
}

}  // namespace

AttentionPath streaming_path() {
  return {.name = PathName::fused,
          .runs_on = has_kernels<kernels::FewKeys>,
          .key_rule = KeyRule::parts,
          .why_not = why_not_streaming,
          .run = run_streaming};
}

}  // namespace fovea
