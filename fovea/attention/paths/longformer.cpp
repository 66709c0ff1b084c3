// The path of Longformer where it is more than a mask rule (spec 4.1). A residue class is a text in
// which a dilated window is a plain one. Classes are read where they lie, and global keys join as
// few keys (joint.h); what that cannot do runs in parts, which are copied and merged.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "fovea/attention/mechanisms/longformer_rule.h"
#include "fovea/attention/paths/joint.h"
#include "fovea/attention/paths/parts.h"
#include "fovea/kernels/common/few_keys.h"

namespace fovea {
namespace {

using Indices = std::vector<int64_t>;

at::Tensor tensor_of(const Indices& numbers) { return at::tensor(numbers, at::kLong); }

// Some indices of a dimension of `size`; a view where they are neighbours.
at::Tensor at_indices(const at::Tensor& x, int64_t dim, const Indices& indices) {
  if (!x.defined()) return x;
  const auto count = std::ssize(indices);
  bool neighbours = true;
  for (int64_t n = 1; n < count; ++n) neighbours &= indices[n] == indices[0] + n;
  if (count > 0 && neighbours) return x.narrow(dim, indices[0], count);
  return x.index_select(dim, tensor_of(indices).to(x.device()));
}

// Tokens of a call in an order of their own: where they stand in the call and in the document.
struct Tokens {
  Indices index;
  std::vector<TokenPlace> places;

  bool empty() const { return index.empty(); }
  void add(int64_t n, TokenPlace place) {
    index.push_back(n);
    places.push_back(place);
  }
  Tokens in_order(const Indices& order) const {
    Tokens sorted;
    for (const int64_t n : order) sorted.add(index[n], places[n]);
    return sorted;
  }
};

// Query heads of one dilation and the key heads that they read.
struct HeadSet {
  int64_t dilation = 1, kv_heads = 0;
  Indices queries, keys;
};

std::vector<HeadSet> head_sets(const AttentionSpec& spec) {
  std::vector<HeadSet> sets;
  const int64_t repeats = spec.heads / spec.kv_heads;
  for (int64_t h = 0; h < spec.heads; ++h) {
    const int64_t dilation = dilation_of(spec.longformer, h);
    auto found = std::ranges::find(sets, dilation, &HeadSet::dilation);
    if (found == sets.end()) found = sets.insert(found, {.dilation = dilation});
    found->queries.push_back(h);
  }
  for (HeadSet& set : sets) {
    for (const int64_t h : set.queries) set.keys.push_back(h / repeats);
    Indices shared = set.keys;
    shared.erase(std::unique(shared.begin(), shared.end()), shared.end());
    // Key heads that all their query heads read stay shared.
    if (std::ssize(shared) * repeats == std::ssize(set.queries)) set.keys = std::move(shared);
    set.kv_heads = std::ssize(set.keys);
  }
  return sets;
}

// One row of the batch, sorted out.
struct Job {
  const AttentionCall& call;
  bool apart = false;  // documents must be told apart
  Tokens rows, global_rows, keys, local_keys, global_keys;
};

Job sorted_out(const AttentionCall& call, const Places& places) {
  const LongformerSpec& spec = call.spec.longformer;
  Job job{.call = call, .apart = places.key_documents_bs.defined()};
  const bool rows_apart = spec.projections || !only_first_globals(spec);
  const std::vector<TokenPlace> queries =
      token_places(places.query_positions_bt, places.query_documents_bt, 0);
  for (size_t n = 0; n < queries.size(); ++n) {
    const bool global = rows_apart && is_global(spec, queries[n].position);
    (global ? job.global_rows : job.rows).add(static_cast<int64_t>(n), queries[n]);
  }
  const std::vector<TokenPlace> keys =
      token_places(places.key_positions_bs, places.key_documents_bs, 0);
  for (size_t n = 0; n < keys.size(); ++n) {
    const auto index = static_cast<int64_t>(n);
    job.keys.add(index, keys[n]);
    (is_global(spec, keys[n].position) ? job.global_keys : job.local_keys).add(index, keys[n]);
  }
  return job;
}

// The call of some heads, rows and keys, at the places of `rows` and `keys`.
AttentionCall call_of(const Job& job, const HeadSet& heads, const Tokens& rows, const Tokens& keys,
                      const MaskRule& mask, bool documents) {
  AttentionCall part = part_of(job.call, mask);
  part.spec.heads = std::ssize(heads.queries);
  part.spec.kv_heads = heads.kv_heads;
  part.q = at_indices(at_indices(part.q, 1, heads.queries), 2, rows.index);
  part.k = at_indices(at_indices(part.k, 1, heads.keys), 2, keys.index);
  part.v = at_indices(at_indices(part.v, 1, heads.keys), 2, keys.index);
  part.tensors.tau_bt = at_indices(part.tensors.tau_bt, 1, rows.index);
  const auto numbers = [](const Tokens& tokens, int64_t TokenPlace::*member) {
    Indices all;
    for (const TokenPlace& place : tokens.places) all.push_back(place.*member);
    return tensor_of(all).unsqueeze(0);
  };
  part.context.key_lengths_b = at::Tensor();
  part.context.query_positions_bt = numbers(rows, &TokenPlace::position);
  part.context.key_positions_bs = numbers(keys, &TokenPlace::position);
  if (!documents) return part;
  part.context.query_documents_bt = numbers(rows, &TokenPlace::document);
  part.context.key_documents_bs = numbers(keys, &TokenPlace::document);
  return part;
}

void add_sink(AttentionCall& part, const AttentionCall& call, const HeadSet& heads) {
  part.spec.sink_logit = call.spec.sink_logit;
  part.tensors.sink_logit_h = at_indices(call.tensors.sink_logit_h, 0, heads.queries);
}

// Residue classes of the documents' positions as documents, ranks in them as positions; neighbours
// of a class lie side by side.
Tokens by_residue(const Tokens& tokens, int64_t dilation) {
  Indices order(tokens.index.size());
  std::iota(order.begin(), order.end(), 0);
  const auto residue = [dilation](int64_t position) {
    return (position % dilation + dilation) % dilation;
  };
  const auto key = [&](int64_t n) {
    const TokenPlace& p = tokens.places[n];
    return std::tuple(p.document, residue(p.position), p.position);
  };
  std::ranges::stable_sort(order, {}, key);
  Tokens sorted = tokens.in_order(order);
  for (TokenPlace& p : sorted.places)
    p = {.document = p.document * dilation + residue(p.position),
         .position = (p.position - residue(p.position)) / dilation};
  return sorted;
}

// Documents numbered 0, 1, ..., so that residue classes have labels of their own.
void number_documents(Job& job) {
  Indices labels;
  for (const TokenPlace& p : job.keys.places) labels.push_back(p.document);
  for (const TokenPlace& p : job.rows.places) labels.push_back(p.document);
  std::ranges::sort(labels);
  labels.erase(std::unique(labels.begin(), labels.end()), labels.end());
  for (Tokens* tokens : {&job.rows, &job.global_rows, &job.keys, &job.local_keys, &job.global_keys})
    for (TokenPlace& p : tokens->places)
      p.document = std::ranges::lower_bound(labels, p.document) - labels.begin();
}

// Rows of a result in another order: row index[n] is row n of x.
AttentionResult in_rows(AttentionResult result, const Indices& index) {
  Indices inverse(index.size());
  for (size_t n = 0; n < index.size(); ++n) inverse[index[n]] = static_cast<int64_t>(n);
  result.out_bhte = at_indices(result.out_bhte, 2, inverse);
  result.lse_bht = at_indices(result.lse_bht, 2, inverse);
  return result;
}

// Where the tokens of `some` stand in `all`, which has each of them.
Indices places_within(const Tokens& some, const Tokens& all) {
  Indices at(static_cast<size_t>(*std::ranges::max_element(all.index) + 1));
  for (size_t n = 0; n < all.index.size(); ++n) at[all.index[n]] = static_cast<int64_t>(n);
  Indices found;
  for (const int64_t n : some.index) found.push_back(at[n]);
  return found;
}

// One query by the decoding kernels, over the keys that it sees: nothing is left to mask.
AttentionResult one_row(const Job& job, const HeadSet& heads) {
  const LongformerSpec& spec = job.call.spec.longformer;
  Tokens row = job.rows, seen;
  const TokenPlace query = row.places[0];
  for (size_t n = 0; n < job.keys.places.size(); ++n) {
    const TokenPlace& key = job.keys.places[n];
    const int64_t distance = query.position - key.position;
    if (key.document != query.document || distance < 0) continue;
    const bool near = distance % heads.dilation == 0 && distance / heads.dilation <= spec.window;
    if (!near && !is_global(spec, key.position)) continue;
    // Ranks for positions: the kernels read runs of neighbours where they lie.
    const bool counted = job.call.spec.bias.kind != BiasSpec::Kind::none;
    seen.add(job.keys.index[n], {.position = counted ? key.position : std::ssize(seen.index)});
    if (!counted) row.places[0].position = seen.places.back().position;
  }
  AttentionCall part = call_of(job, heads, row, seen, {}, false);
  add_sink(part, job.call, heads);
  return run_part(part);
}

// Positions one behind the other, as all tokens lie in the call.
bool in_text_order(const std::vector<TokenPlace>& places) {
  for (size_t n = 1; n < places.size(); ++n)
    if (places[n].position != places[0].position + static_cast<int64_t>(n)) return false;
  return true;
}

// Query heads of the same key heads have one dilation.
bool shares_dilation(const AttentionSpec& spec) {
  const int64_t repeats = spec.heads / spec.kv_heads;
  for (int64_t h = 0; h < spec.heads; ++h) {
    const int64_t first = h / repeats * repeats;
    if (dilation_of(spec.longformer, h) != dilation_of(spec.longformer, first)) return false;
  }
  return true;
}

// Whether one call of run_joint() serves: all tokens where they lie, globals as few keys.
bool is_joint(const Job& job, const Places& places) {
  const AttentionSpec& spec = job.call.spec;
  const auto globals = std::ssize(job.global_keys.index);
  const bool dilated = largest_dilation(spec.longformer) > 1;
  if (!dilated && job.rows.index.size() == static_cast<size_t>(job.call.q.size(2)) &&
      only_first_globals(spec.longformer))
    return false;  // the mask rule has it
  return job.call.q.size(2) >= kFewestJointRows && globals <= kernels::kMostFewKeys &&
         globals < job.call.k.size(2) && spec.bias.kind == BiasSpec::Kind::none &&
         !spec.focus.active() && shares_dilation(spec) &&
         (!dilated || (!job.apart && job.call.q.size(2) >= largest_dilation(spec.longformer) &&
                       in_text_order(token_places(places.query_positions_bt, {}, 0)) &&
                       in_text_order(job.keys.places) && job.keys.places[0].position == 0));
}

// Neighbouring key heads [first, first + count) of one dilation.
struct HeadRun {
  int64_t first = 0, count = 0, dilation = 1;
};

std::vector<HeadRun> head_runs(const AttentionSpec& spec) {
  std::vector<HeadRun> runs;
  for (int64_t g = 0; g < spec.kv_heads; ++g) {
    const int64_t dilation = dilation_of(spec.longformer, g * (spec.heads / spec.kv_heads));
    if (runs.empty() || runs.back().dilation != dilation)
      runs.push_back({.first = g, .dilation = dilation});
    ++runs.back().count;
  }
  return runs;
}

AttentionCall window_part(const Job& job, const HeadRun& heads) {
  const AttentionSpec& spec = job.call.spec;
  AttentionCall part = part_of(job.call, {.window = spec.longformer.window + 1});
  part.spec.kv_heads = heads.count;
  part.spec.heads = heads.count * (spec.heads / spec.kv_heads);
  part.spec.sink_logit = spec.sink_logit;
  return part;
}

// A residue class of a text in order is a text of its own, in which the window is a plain one.
// Classes of as many queries and keys, side by side in both, are the batch of one call.
void add_classes(JointCall& joint, const Job& job, const HeadRun& heads) {
  const int64_t dilation = heads.dilation, keys = job.call.k.size(2), rows = job.call.q.size(2);
  const auto count = [dilation](int64_t first, int64_t size) {
    return (size - first + dilation - 1) / dilation;
  };
  std::vector<JointBlock> classes;
  for (int64_t c = 0; c < dilation; ++c) {
    const int64_t key = (keys - rows + c) % dilation;
    const JointBlock one{.rows = 1,
                         .kv_head = heads.first,
                         .kv_heads = heads.count,
                         .queries = {.first = c, .step = dilation, .count = count(c, rows)},
                         .keys = {.first = key, .step = dilation, .count = count(key, keys)},
                         .call = {}};
    if (!classes.empty()) {
      JointBlock& last = classes.back();
      if (last.queries.count == one.queries.count && last.keys.count == one.keys.count &&
          last.keys.first + last.classes == key) {
        ++last.classes;
        continue;
      }
    }
    classes.push_back(one);
  }
  for (JointBlock& block : classes) {
    AttentionCall part = window_part(job, heads);
    part.q = tokens_of(job.call.q, block, block.queries, 0, part.spec.heads);
    part.k = tokens_of(job.call.k, block, block.keys, 0, heads.count);
    part.v = tokens_of(job.call.v, block, block.keys, 0, heads.count);
    set_places(part.context, {});
    block.call = whole_block(part).call;
    for (int64_t b = 0; b < job.call.q.size(0); ++b) {
      block.row = b;
      joint.blocks.push_back(block);
    }
  }
}

void add_window(JointCall& joint, const Job& job, const Places& places, const HeadRun& heads) {
  AttentionCall part = window_part(job, heads);
  set_places(part.context, places);
  JointBlock block = whole_block(part);
  block.kv_head = heads.first;
  block.kv_heads = heads.count;
  joint.blocks.push_back(std::move(block));
}

// Global keys that a row sees beyond its window.
JointFew few_globals(const Job& job, const std::vector<TokenPlace>& queries) {
  const LongformerSpec& spec = job.call.spec.longformer;
  JointFew few{.key_rows = job.global_keys.index, .seen = {}, .set_of_head = {}};
  Indices dilations;
  for (int64_t h = 0; h < job.call.spec.heads; ++h) {
    const int64_t dilation = dilation_of(spec, h);
    const auto found = std::ranges::find(dilations, dilation);
    few.set_of_head.push_back(found - dilations.begin());
    if (found != dilations.end()) continue;
    dilations.push_back(dilation);
    std::vector<uint64_t>& seen = few.seen.emplace_back(queries.size(), 0);
    for (size_t i = 0; i < queries.size(); ++i) {
      for (size_t n = 0; n < job.global_keys.places.size(); ++n) {
        const TokenPlace& key = job.global_keys.places[n];
        const int64_t distance = queries[i].position - key.position;
        const bool near = distance % dilation == 0 && distance / dilation <= spec.window;
        if (key.document == queries[i].document && distance >= 0 && !near)
          seen[i] |= uint64_t{1} << n;
      }
    }
  }
  return few;
}

// The rows that are no global ones of their own: out and lse in the order of job.rows.
AttentionResult local_rows(const Job& job, const HeadSet& heads) {
  const LongformerSpec& spec = job.call.spec.longformer;
  if (job.rows.index.size() == 1) return one_row(job, heads);
  const std::optional<int64_t> first = only_first_globals(spec);
  if (heads.dilation == 1 && first) {
    AttentionCall part = call_of(job, heads, job.rows, job.keys,
                                 {.window = spec.window + 1, .sinks = *first}, job.apart);
    add_sink(part, job.call, heads);
    return run_part(part);
  }
  const bool dilated = heads.dilation > 1;
  AttentionCall of_globals = call_of(job, heads, job.rows, job.global_keys, {}, job.apart);
  if (job.local_keys.empty()) {
    add_sink(of_globals, job.call, heads);
    return run_part(of_globals);
  }
  const Tokens rows = dilated ? by_residue(job.rows, heads.dilation) : job.rows,
               keys = dilated ? by_residue(job.local_keys, heads.dilation) : job.local_keys;
  AttentionCall window =
      call_of(job, heads, rows, keys, {.window = spec.window + 1}, job.apart || dilated);
  add_sink(window, job.call, heads);
  AttentionResult result = run_part(window);
  if (dilated) result = in_rows(std::move(result), places_within(rows, job.rows));
  if (job.global_keys.empty()) return result;
  return merged(result, run_part(of_globals));
}

// Which keys each query reads that sees everything before it: bit n of key j.
std::vector<uint64_t> seen_before(const Tokens& queries, const Tokens& keys) {
  std::vector<uint64_t> seen(keys.places.size(), 0);
  for (size_t j = 0; j < keys.places.size(); ++j) {
    for (size_t n = 0; n < queries.places.size(); ++n) {
      const TokenPlace &key = keys.places[j], &query = queries.places[n];
      if (key.document == query.document && key.position <= query.position)
        seen[j] |= uint64_t{1} << n;
    }
  }
  return seen;
}

// Global rows read everything before them, by their own projections where they have some.
AttentionCall call_of_globals(const Job& job, const HeadSet& all_heads) {
  AttentionCall given = job.call;
  if (const AttentionTensors& x = job.call.tensors; x.global_q_bhtd.defined()) {
    const at::ScalarType dtype = given.q.scalar_type();
    given.q = x.global_q_bhtd.to(dtype);
    given.k = x.global_k_bgsd.to(dtype);
    given.v = x.global_v_bgse.to(dtype);
  }
  const Job of_globals{.call = given, .apart = job.apart};
  AttentionCall part = call_of(of_globals, all_heads, job.global_rows, job.keys, {}, job.apart);
  add_sink(part, given, all_heads);
  return part;
}

bool are_few_rows(const AttentionCall& part) {
  const int64_t queries = part.q.size(2) * (part.spec.heads / part.spec.kv_heads);
  return queries <= kernels::kMostFewKeys && part.spec.bias.kind == BiasSpec::Kind::none &&
         !part.spec.focus.active();
}

AttentionResult rows_of_globals(const Job& job, const AttentionCall& part) {
  return part.wants_gradient() && are_few_rows(part)
             ? run_few_rows(part, seen_before(job.global_rows, job.keys))
             : run_part(part);
}

AttentionResult beside(const std::vector<AttentionResult>& parts, int64_t dim) {
  if (parts.size() == 1) return parts[0];
  std::vector<at::Tensor> outs, lses;
  for (const AttentionResult& part : parts) {
    outs.push_back(part.out_bhte);
    lses.push_back(part.lse_bht);
  }
  AttentionResult all = parts[0];
  all.out_bhte = at::cat(outs, dim);
  all.lse_bht = at::cat(lses, dim);
  return all;
}

AttentionResult of_all_heads(const Job& job) {
  const std::vector<HeadSet> sets = head_sets(job.call.spec);
  std::vector<AttentionResult> parts;
  Indices heads;
  for (const HeadSet& set : sets) {
    parts.push_back(local_rows(job, set));
    heads.insert(heads.end(), set.queries.begin(), set.queries.end());
  }
  AttentionResult result = beside(parts, 1);
  if (std::ranges::is_sorted(heads)) return result;
  Indices inverse(heads.size());
  for (size_t n = 0; n < heads.size(); ++n) inverse[heads[n]] = static_cast<int64_t>(n);
  result.out_bhte = at_indices(result.out_bhte, 1, inverse);
  result.lse_bht = at_indices(result.lse_bht, 1, inverse);
  return result;
}

HeadSet every_head(const AttentionSpec& spec) {
  HeadSet all{.kv_heads = spec.kv_heads};
  for (int64_t h = 0; h < spec.heads; ++h) all.queries.push_back(h);
  for (int64_t g = 0; g < spec.kv_heads; ++g) all.keys.push_back(g);
  return all;
}

AttentionResult run_in_place(const Job& job, const Places& places) {
  const AttentionCall& call = job.call;
  auto joint = c10::make_intrusive<JointCall>();
  for (const HeadRun& heads : head_runs(call.spec)) {
    if (heads.dilation > 1) {
      add_classes(*joint, job, heads);
    } else {
      add_window(*joint, job, places, heads);
    }
  }
  const std::vector<TokenPlace> queries =
      token_places(places.query_positions_bt, places.query_documents_bt, 0);
  joint->few = few_globals(job, queries);
  JointOperands given{.q_bhtd = call.q,
                      .k_bgsd = call.k,
                      .v_bgse = call.v,
                      .few_q_bhtd = {},
                      .tau_bt = call.tensors.tau_bt,
                      .sink_h = call.spec.sink_logit ? call.tensors.sink_logit_h : at::Tensor(),
                      .known_out_bhne = {},
                      .known_lse_bhn = {}};
  if (!job.global_rows.empty()) {
    joint->known = job.global_rows.index;
    const AttentionCall globals = call_of_globals(job, every_head(call.spec));
    if (!call.tensors.global_q_bhtd.defined() && are_few_rows(globals)) {
      joint->few_rows = few_rows_call(globals, seen_before(job.global_rows, job.keys));
    } else {
      const AttentionResult known = rows_of_globals(job, globals);
      given.known_out_bhne = known.out_bhte;
      given.known_lse_bhn = known.lse_bht;
    }
    for (std::vector<uint64_t>& seen : joint->few.seen)
      for (const int64_t row : joint->known) seen[row] = 0;
  }
  return run_joint(given, std::move(joint));
}

// A call whose rows of the batch have the same places.
AttentionResult run_alike(const AttentionCall& call, const Places& places) {
  Job job = sorted_out(call, places);
  if (is_joint(job, places)) return run_in_place(job, places);
  number_documents(job);
  std::vector<AttentionResult> parts;
  Indices index;
  if (!job.rows.empty()) parts.push_back(of_all_heads(job));
  if (!job.global_rows.empty()) {
    parts.push_back(rows_of_globals(job, call_of_globals(job, every_head(call.spec))));
  }
  for (const Tokens* rows : {&job.rows, &job.global_rows})
    index.insert(index.end(), rows->index.begin(), rows->index.end());
  AttentionResult result = beside(parts, 2);
  return std::ranges::is_sorted(index) ? result : in_rows(std::move(result), index);
}

// Row b of the batch alone, and where its tokens stand.
AttentionCall row_of(const AttentionCall& call, int64_t b) {
  AttentionCall row = call;
  for (at::Tensor* x : {&row.q, &row.k, &row.v, &row.tensors.tau_bt, &row.tensors.global_q_bhtd,
                        &row.tensors.global_k_bgsd, &row.tensors.global_v_bgse})
    if (x->defined()) *x = x->narrow(0, b, 1);
  return row;
}

Places places_of_row(const Places& all, int64_t b) {
  const auto pick = [b](const at::Tensor& x) {
    return x.defined() && x.size(0) > 1 ? x.narrow(0, b, 1) : x;
  };
  return {.query_positions_bt = pick(all.query_positions_bt),
          .key_positions_bs = pick(all.key_positions_bs),
          .query_documents_bt = pick(all.query_documents_bt),
          .key_documents_bs = pick(all.key_documents_bs)};
}

bool alike(const Places& places) {
  for (const at::Tensor* x : {&places.query_positions_bt, &places.key_positions_bs,
                              &places.query_documents_bt, &places.key_documents_bs})
    if (x->defined() && x->size(0) > 1) return false;
  return true;
}

std::optional<std::string> why_not_longformer(const AttentionCall& call) {
  if (call.q.numel() == 0 || call.k.size(2) == 0) return "nothing to compute";
  if (call.drops_weights()) return "dropout counts pairs in the order of the text";
  if (call.spec.bias.kind != BiasSpec::Kind::none && largest_dilation(call.spec.longformer) > 1)
    return "a position bias counts distances that dilated heads do not have";
  return why_not_pointwise(part_of(call, {.window = call.spec.longformer.window + 1}));
}

AttentionResult run_longformer(const AttentionCall& call) {
  const Places& places = call.places();
  AttentionResult result;
  if (alike(places)) {
    result = run_alike(call, places);
  } else {
    std::vector<AttentionResult> rows;
    for (int64_t b = 0; b < call.q.size(0); ++b)
      rows.push_back(run_alike(row_of(call, b), places_of_row(places, b)));
    result = beside(rows, 0);
  }
  result.path.plan = PlanWord::window;
  result.path.reason = {.kind = PathReason::Kind::pointwise};
  return result;
}

}  // namespace

AttentionPath longformer_path() {
  return {.name = PathName::fused,
          .runs_on = has_kernels<kernels::FewKeys>,
          .key_rule = KeyRule::parts,
          .why_not = why_not_longformer,
          .run = run_longformer};
}

}  // namespace fovea
