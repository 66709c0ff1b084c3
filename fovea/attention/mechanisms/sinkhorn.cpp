// Potentials of Sinkhorn.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/sinkhorn.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>

#include "fovea/attention/places.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

using Potentials = FocusSpec::Potentials;

/// b [1 or b, n, k] of a run of tokens [b, n, k] that forms one document.
using RunPotentials = std::function<at::Tensor(const at::Tensor&)>;

// Applies `of_run` to every document of every row; their labels are on the CPU.
at::Tensor by_document(const at::Tensor& scores, const at::Tensor& documents,
                       const RunPotentials& of_run) {
  if (!documents.defined()) return of_run(scores);
  const at::Tensor labels =
      (documents.dim() == 1 ? documents.unsqueeze(0) : documents).to(at::kLong).contiguous();
  const int64_t tokens = scores.size(1);
  std::vector<at::Tensor> rows;
  for (int64_t b = 0; b < scores.size(0); ++b) {
    const int64_t* label =
        labels.const_data_ptr<int64_t>() + (labels.size(0) == 1 ? 0 : b) * tokens;
    std::vector<at::Tensor> runs;
    for (int64_t begin = 0; begin < tokens;) {
      int64_t end = begin + 1;
      while (end < tokens && label[end] == label[begin]) ++end;
      runs.push_back(of_run(scores.narrow(0, b, 1).narrow(1, begin, end - begin)));
      begin = end;
    }
    if (!runs.empty()) rows.push_back(at::cat(runs, 1));
  }
  return rows.empty() ? scores : at::cat(rows, 0);
}

// b of the tokens from `first` on of a document whose scores are known up to its last token.
at::Tensor chunk_potentials(const FocusSpec& spec, const at::Tensor& scores_btk, int64_t first) {
  const at::Tensor scores = scores_btk.detach();
  const int64_t tokens = scores.size(1);
  std::vector<at::Tensor> parts;
  for (int64_t begin = first; begin < tokens;) {
    const int64_t chunk = begin / spec.chunk * spec.chunk;
    const int64_t end = std::min(tokens, chunk + spec.chunk);
    const at::Tensor b = sinkhorn_potentials(scores.narrow(1, 0, chunk), spec.rounds);
    parts.push_back(b.unsqueeze(1).expand({scores.size(0), end - begin, spec.groups}));
    begin = end;
  }
  return parts.empty() ? scores.narrow(1, 0, 0) : at::cat(parts, 1);
}

// -LSE over the tokens [.., n, k] of all ranks: [.., 1, k].
at::Tensor column_potentials(const at::Tensor& scores, Communicator& ranks) {
  const at::Tensor own = at::logsumexp(scores, -2, true);
  return ranks.size() == 1 ? -own : -at::logsumexp(ranks.gather(own), 0);
}

}  // namespace

at::Tensor sinkhorn_potentials(const at::Tensor& scores, int64_t rounds) {
  return sinkhorn_potentials(scores, rounds, alone());
}

at::Tensor sinkhorn_potentials(const at::Tensor& scores, int64_t rounds, Communicator& ranks) {
  const int64_t k = scores.size(-1);
  if (scores.size(-2) == 0) {
    std::vector<int64_t> sizes = scores.sizes().slice(0, scores.dim() - 2).vec();
    sizes.push_back(k);
    return at::zeros(sizes, scores.options());
  }
  at::Tensor b = column_potentials(scores, ranks);
  for (int64_t n = 1; n < rounds; ++n) {
    const at::Tensor a = -at::logsumexp(scores + b, -1, true);
    b = column_potentials(scores + a, ranks);
  }
  b = b.squeeze(-2);
  return b - b.mean(-1, true);
}

at::Tensor token_potentials(const FocusSpec& spec, const at::Tensor& scores,
                            const AttentionContext& context, const at::Tensor& ema_k) {
  if (spec.assignment == FocusSpec::Assignment::softmax || scores.size(1) == 0) return {};
  if (spec.potentials == Potentials::ema) return ema_k.detach();
  const at::Tensor documents = on_host(context).query_documents_bt;
  switch (spec.potentials) {
    case Potentials::ema:
      break;
    case Potentials::chunk:
      return by_document(scores, documents,
                         [&](const at::Tensor& run) { return chunk_potentials(spec, run, 0); });
    case Potentials::sequence:
      return by_document(scores, documents, [&](const at::Tensor& run) {
        return sinkhorn_potentials(run, spec.rounds).unsqueeze(1).expand_as(run);
      });
    case Potentials::batch:
      return sinkhorn_potentials(scores.flatten(0, 1), spec.rounds);
  }
  return {};
}

at::Tensor cached_potentials(const FocusSpec& spec, const at::Tensor& scores,
                             const at::Tensor& ema_k, CachedStreams& cache) {
  if (spec.assignment == FocusSpec::Assignment::softmax) return {};
  if (spec.potentials == Potentials::ema) return ema_k.detach();
  require<UnsupportedError>(spec.potentials == Potentials::chunk, "cache",
                            "focus.potentials {} needs the whole text and has no decode (U-4); "
                            "train with potentials ema or chunk",
                            enum_name(spec.potentials));
  cache.append(kGroupScoresStream, scores);
  const auto last = [&](const at::Tensor& all) {
    return chunk_potentials(spec, all, all.size(1) - scores.size(1));
  };
  if (cache.equal_lengths()) return last(cache.rows(kGroupScoresStream));
  std::vector<at::Tensor> each;
  for (int64_t b = 0; b < cache.batch(); ++b)
    each.push_back(last(cache.rows(kGroupScoresStream, b)));
  return at::cat(each);
}

}  // namespace fovea
