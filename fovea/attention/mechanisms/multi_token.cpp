// Keys, checks and the convolution of Multi-Token Attention.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/multi_token.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "fovea/attention/call.h"
#include "fovea/attention/mechanism.h"
#include "fovea/attention/mechanisms/convolution.h"
#include "fovea/attention/stage_rows.h"
#include "fovea/attention/stream_rows.h"
#include "fovea/base/error.h"
#include "fovea/runtime/own_kernels.h"

namespace fovea {
namespace {

using Equation = MultiTokenSpec::Equation;

// A kernel beyond this is a typing error: the paper's largest is 8 x 15.
constexpr int64_t kLargestExtent = 1024;

void check_extent(const KernelExtent& extent, const char* name) {
  require<ConfigError>(extent.queries >= 0 && extent.keys >= 0 &&
                           extent.queries <= kLargestExtent && extent.keys <= kLargestExtent,
                       kSpecPlace,
                       "multi_token.{}.queries and .keys must be 0 (off) to {}; got {} and {}",
                       name, kLargestExtent, extent.queries, extent.keys);
  require<ConfigError>((extent.queries > 0) == (extent.keys > 0), kSpecPlace,
                       "multi_token.{0}.queries and multi_token.{0}.keys must both be at least 1, "
                       "or both 0 (off); got {1} and {2}",
                       name, extent.queries, extent.keys);
}

// Depthwise: each head with its own kernel [h, cq, ck].
at::Tensor depthwise(const at::Tensor& x_bhrs, const at::Tensor& kernel_hqk) {
  return at::conv2d(x_bhrs, kernel_hqk.unsqueeze(1), {}, at::IntArrayRef{1, 1},
                    at::IntArrayRef{0, 0}, at::IntArrayRef{1, 1}, x_bhrs.size(1));
}

// Rows of one document of one or more sequences: x [b, h, rows, s], results are its last rows.
at::Tensor convolve_rows(Equation equation, const at::Tensor& x, const at::Tensor& kernel,
                         int64_t results, const at::Tensor& allowed) {
  const int64_t cq = kernel.size(1), ck = kernel.size(2);
  const int64_t older = (ck - 1) / 2, newer = ck / 2, earlier = x.size(2) - results;
  const int64_t wanted = std::min(earlier, cq - 1);
  const at::Tensor rows = x.narrow(2, earlier - wanted, wanted + results);
  if (equation == Equation::eq5)
    return depthwise(at::constant_pad_nd(rows, {older, newer, cq - 1 - wanted, 0}), kernel);
  const at::Tensor hidden = allowed.logical_not();
  const at::Tensor padded = at::constant_pad_nd(rows, {0, 0, cq - 1 - wanted, 0});
  at::Tensor sum;
  for (int64_t a = 0; a < cq; ++a) {
    const at::Tensor seen = padded.narrow(2, a, results).masked_fill(hidden, 0.0);
    const at::Tensor part =
        depthwise(at::constant_pad_nd(seen, {older, newer}), kernel.narrow(1, a, 1));
    sum = sum.defined() ? sum + part : part;
  }
  return sum;
}

// The same over packed rows, whose documents the host does not know: one convolution along the keys
// for each older row, which counts where it is of the same document.
at::Tensor convolve_packed(Equation equation, const at::Tensor& x, const at::Tensor& kernel,
                           int64_t results, const at::Tensor& documents,
                           const at::Tensor& allowed) {
  const int64_t cq = kernel.size(1), ck = kernel.size(2), earlier = x.size(2) - results;
  at::Tensor sum;
  for (int64_t back = 0; back < cq; ++back) {
    const int64_t without = std::max<int64_t>(0, back - earlier);  // first results without that row
    const int64_t count = results - without, row = earlier + without;
    if (count <= 0) break;
    const auto labels = [&](int64_t first) { return documents.narrow(1, first, count); };
    at::Tensor seen =
        x.narrow(2, row - back, count)
            .masked_fill(labels(row - back).ne(labels(row)).unsqueeze(1).unsqueeze(3), 0.0);
    if (equation == Equation::eq4)
      seen = seen.masked_fill(allowed.narrow(2, without, count).logical_not(), 0.0);
    const at::Tensor part = depthwise(at::constant_pad_nd(seen, {(ck - 1) / 2, ck / 2, 0, 0}),
                                      kernel.narrow(1, cq - 1 - back, 1));
    const at::Tensor whole = without > 0 ? at::constant_pad_nd(part, {0, 0, without, 0}) : part;
    sum = sum.defined() ? sum + whole : whole;
  }
  return sum;
}

// Row indices at which a new label begins, and the number of rows: {0, 4, 9} for labels 0000 11111.
std::vector<int64_t> borders(const at::Tensor& labels_r) {
  const at::Tensor labels = labels_r.contiguous();
  const int64_t* label = labels.const_data_ptr<int64_t>();
  std::vector<int64_t> found{0};
  for (int64_t i = 1; i < labels.numel(); ++i) {
    if (label[i] != label[i - 1]) found.push_back(i);
  }
  found.push_back(labels.numel());
  return found;
}

at::Tensor batch_row(const at::Tensor& x, int64_t n) {
  return x.defined() ? x.narrow(0, x.size(0) > 1 ? n : 0, 1) : x;
}

}  // namespace

at::Tensor key_query_convolution(Equation equation, const at::Tensor& x, const at::Tensor& kernel,
                                 int64_t results, const at::Tensor& documents,
                                 const at::Tensor& allowed) {
  const int64_t rows = x.size(2), skipped = rows - results;
  if (x.numel() == 0 || results == 0) return x.narrow(2, skipped, results);
  const at::Tensor k = kernel.to(x.scalar_type());
  if (documents.defined() && !has_own_kernels(x))
    return convolve_packed(equation, x, k, results, documents, allowed);
  if (equation == Equation::eq5 && convolution_kernels_take(x))
    return convolution_by_kernels(x, k, results, documents);
  if (!documents.defined()) return convolve_rows(equation, x, k, results, allowed);
  if (documents.size(0) > 1) {
    std::vector<at::Tensor> sequences;
    for (int64_t n = 0; n < x.size(0); ++n) {
      sequences.push_back(key_query_convolution(equation, batch_row(x, n), k, results,
                                                batch_row(documents, n), batch_row(allowed, n)));
    }
    return at::cat(sequences);
  }
  const std::vector<int64_t> border = borders(documents.select(0, 0));
  std::vector<at::Tensor> parts;
  for (size_t n = 0; n + 1 < border.size(); ++n) {
    const int64_t begin = border[n], end = border[n + 1], first = std::max(begin, skipped);
    if (first >= end) continue;
    const at::Tensor seen =
        allowed.defined() ? allowed.narrow(2, first - skipped, end - first) : allowed;
    parts.push_back(convolve_rows(equation, x.narrow(2, begin, end - begin), k, end - first, seen));
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts, 2);
}

std::span<const std::string_view> enum_names(KernelStart) {
  static constexpr std::string_view names[] = {"identity", "zeros", "constant", "uniform",
                                               "diagonal"};
  return names;
}

at::Tensor start_kernel(KernelStart start, double value, int64_t heads,
                        const KernelExtent& extent) {
  at::Tensor kernel = at::zeros({heads, extent.queries, extent.keys}, at::kFloat);
  if (start == KernelStart::constant) return kernel.fill_(value);
  if (start == KernelStart::zeros) return kernel;
  const int64_t reach = start == KernelStart::diagonal ? extent.queries : 1;
  for (int64_t back = 0; back < std::min(reach, extent.older_keys() + 1); ++back)
    kernel.select(1, extent.queries - 1 - back).select(1, extent.older_keys() - back).fill_(1.0);
  return kernel;
}

void KernelExtent::describe(FieldVisitor& v) {
  v.integer(
      {"queries", "cq: queries up to the current one; 0 = no convolution", {0, kLargestExtent}},
      queries);
  v.integer({"keys", "ck: keys around the current one, odd or even (M-3)", {0, kLargestExtent}},
            keys);
}

void MultiTokenSpec::describe(FieldVisitor& v) {
  v.nested({"before", "stage 3: kernel on the logits"}, before);
  v.nested({"after", "stage 8: kernel on the weights"}, after);
  v.choice(
      {"equation", "eq5 (default of paper and code) or eq4: which pairs of older queries count"},
      equation);
  v.boolean({"renormalise", "divide convolved weights by the sum of their row (M-9)"}, renormalise);
}

void MultiTokenSpec::check() const {
  check_extent(before, "before");
  check_extent(after, "after");
  require<ConfigError>(!renormalise || after.active(), kSpecPlace,
                       "multi_token.renormalise acts on convolved weights; set "
                       "multi_token.after.queries and .keys, or remove it");
}

std::span<const std::string_view> enum_names(MultiTokenSpec::Equation) {
  static constexpr std::string_view names[] = {"eq5", "eq4"};
  return names;
}

namespace {

void add_use(StageId stage, const KernelExtent& extent, const MultiTokenSpec& spec,
             std::vector<StageUse>& all) {
  if (!extent.active()) return;
  std::string setting = fmt::format("convolution {} x {}", extent.queries, extent.keys);
  if (spec.equation != Equation::eq5) setting += fmt::format(" {}", enum_name(spec.equation));
  all.push_back({.stage = stage,
                 .setting = setting,
                 .why_not_sdpa = fmt::format("{} joins rows or heads", setting),
                 .why_not_kernels = fmt::format("no pointwise kernel for {}", setting)});
}

std::vector<StageUse> multi_token_uses(const AttentionSpec& spec) {
  const MultiTokenSpec& tokens = spec.multi_token;
  std::vector<StageUse> all;
  add_use(StageId::convolution_before, tokens.before, tokens, all);
  add_use(StageId::convolution_after, tokens.after, tokens, all);
  if (tokens.renormalise)
    all.push_back({.stage = StageId::convolution_after, .setting = "renormalise"});
  return all;
}

// Stage 3 on logits of all rows, of which the last ones leave it.
at::Tensor convolved_logits(const at::Tensor& logits, const StageRows& rows) {
  const MultiTokenSpec& spec = rows.call.spec.multi_token;
  if (!spec.before.active()) return logits;
  const at::Tensor x =
      spec.equation == Equation::eq5 ? logits.masked_fill(~rows.allowed, 0.0) : logits;
  return key_query_convolution(spec.equation, x, rows.call.tensors.kernel_before_hqk, rows.results,
                               rows.places.query_documents_bt, rows.allowed_results());
}

// Rows of convolved weights divided by their sum, where there is one (M-9).
at::Tensor renormalised(const at::Tensor& weights) {
  const at::Tensor sum = weights.sum(-1, true);
  constexpr double smallest = 1e-6;
  return weights / at::where(sum.abs() > smallest, sum, at::ones_like(sum));
}

// Stage 8 on weights that are 0 where not allowed.
at::Tensor convolved_weights(const at::Tensor& weights, const StageRows& rows) {
  const MultiTokenSpec& spec = rows.call.spec.multi_token;
  if (!spec.after.active()) return weights;
  const at::Tensor p =
      key_query_convolution(Equation::eq5, weights, rows.call.tensors.kernel_after_hqk,
                            rows.results, rows.places.query_documents_bt, {})
          .masked_fill(~rows.allowed_results(), 0.0);
  return spec.renormalise ? renormalised(p) : p;
}

constexpr StageFormula kMultiTokenFormulas[] = {
    {.stage = StageId::convolution_before,
     .apply = convolved_logits,
     .earlier_rows =
         [](const AttentionSpec& spec) { return spec.multi_token.before.earlier_queries(); },
     .columns_beside = [](const AttentionSpec& spec) { return spec.multi_token.before.keys / 2; }},
    {.stage = StageId::convolution_after,
     .apply = convolved_weights,
     .earlier_rows =
         [](const AttentionSpec& spec) { return spec.multi_token.after.earlier_queries(); },
     .columns_beside = [](const AttentionSpec& spec) { return spec.multi_token.after.keys / 2; }},
};

std::string setting_of(const KernelExtent& extent) {
  return fmt::format("a {} x {} convolution", extent.queries, extent.keys);
}

constexpr TensorSlot kMultiTokenTensors[] = {
    {.name = "kernel_before",
     .member = &AttentionTensors::kernel_before_hqk,
     .sizes = [](const AttentionSpec& spec, const CallShape&) -> Sizes {
       if (!(spec.multi_token.before.active())) return std::nullopt;
       return std::vector<int64_t>{spec.heads, spec.multi_token.before.queries,
                                   spec.multi_token.before.keys};
     },
     .setting = [](const AttentionSpec& spec) { return setting_of(spec.multi_token.before); }},
    {.name = "kernel_after",
     .member = &AttentionTensors::kernel_after_hqk,
     .sizes = [](const AttentionSpec& spec, const CallShape&) -> Sizes {
       if (!(spec.multi_token.after.active())) return std::nullopt;
       return std::vector<int64_t>{spec.heads, spec.multi_token.after.queries,
                                   spec.multi_token.after.keys};
     },
     .setting = [](const AttentionSpec& spec) { return setting_of(spec.multi_token.after); }},
};

void add_streams_multi_token(const AttentionSpec& spec, const StreamSpec& keys,
                             std::vector<StreamSpec>& all) {
  const int64_t earlier = spec.multi_token.earlier_queries();
  if (earlier == 0) return;
  all.push_back({.name = stream::kQueries,
                 .row_shape = {spec.heads, spec.head_dim},
                 .dtype = keys.dtype,
                 .keep_last = earlier + 1,
                 .new_rows = new_rows_of<&AttentionCall::q>,
                 .set_rows = set_rows_of<&AttentionCall::q>});
}

constexpr MechanismSetting kMultiTokenSettings[] = {
    {"multi-token",
     [](AttentionSpec& s) {
       s.multi_token = {.before = {6, 11}, .after = {6, 11}};
     }},
};

}  // namespace

const Mechanism& multi_token_mechanism() {
  static constexpr Mechanism mechanism{
      .name = "multi_token",
      .describe =
          [](AttentionSpec& spec, FieldVisitor& v) {
            v.nested({"multi_token", "stages 3 and 8: key-query convolution (spec 3)"},
                     spec.multi_token);
          },
      .check = [](const AttentionSpec& spec) { spec.multi_token.check(); },
      .uses = multi_token_uses,
      .formulas = kMultiTokenFormulas,
      .tensors = kMultiTokenTensors,
      .add_streams = add_streams_multi_token,
      .token = TokenForm::kernels,
      .settings = kMultiTokenSettings,
      .remove = [](AttentionSpec& spec) { spec.multi_token = {}; },
  };
  return mechanism;
}

}  // namespace fovea
