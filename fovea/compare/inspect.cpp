// What attention does on a text.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/compare/inspect.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <set>
#include <span>
#include <tuple>

#include "fovea/attention/mechanisms/focus.h"
#include "fovea/attention/stages.h"
#include "fovea/base/error.h"
#include "fovea/compare/collect.h"

namespace fovea {
namespace {

std::vector<double> doubles(const at::Tensor& x) {
  const at::Tensor wide = x.detach().to(at::kCPU, at::kDouble).contiguous().flatten();
  const double* data = wide.const_data_ptr<double>();
  return {data, data + wide.numel()};
}

/// The text as a model sees it.
struct Pieces {
  std::vector<std::string> raw, printable;
  ModelInput input;
};

Pieces pieces_of(const Transformer& model, const Tokenizer& tokenizer, const std::string& text,
                 int64_t most) {
  std::vector<int32_t> tokens;
  if (tokenizer.bos() >= 0) tokens.push_back(tokenizer.bos());
  tokenizer.append(text, tokens);
  tokens.resize(
      std::min<size_t>(tokens.size(), static_cast<size_t>(std::min(most, model.config().context))));
  require<InputError>(!tokens.empty(), "inspect", "the text must have a token; it is empty");
  Pieces pieces;
  const at::Tensor ids = at::empty({1, static_cast<int64_t>(tokens.size())}, at::kLong);
  std::ranges::copy(tokens, ids.mutable_data_ptr<int64_t>());
  pieces.input.tokens_bt = ids.to(model.device());
  for (const int32_t token : tokens) {
    pieces.raw.push_back(tokenizer.decode(std::span<const int32_t>(&token, 1)));
    pieces.printable.push_back(printable_piece(tokenizer, token));
  }
  return pieces;
}

void check_wanted(const InspectOptions& options, const ModelConfig& config) {
  for (const int64_t layer : options.layers) {
    require<ConfigError>(layer >= 0 && layer < config.layers, "inspect",
                         "--layers must be below {}; got {}", config.layers, layer);
  }
  for (const int64_t head : options.heads) {
    require<ConfigError>(head >= 0 && head < config.heads, "inspect",
                         "--heads must be below {}; got {}", config.heads, head);
  }
}

/// NaN in, NaN out: no page of empty pictures.
void require_numbers(const InspectLayer& layer) {
  const auto finite = [](const std::vector<double>& values) {
    return std::ranges::all_of(values, [](double x) { return std::isfinite(x); });
  };
  require<NumericalError>(
      finite(layer.entropy) && finite(layer.sink_mass) && finite(layer.largest_weight), "inspect",
      "the attention of layer {} is not finite: the model's weights are damaged or its logits "
      "overflow; check the model, or train it again",
      layer.layer);
}

InspectLayer layer_of(const LayerView& view, int64_t layer) {
  return {.layer = layer,
          .pipeline = describe_pipeline(view.spec),
          .temperature = view.temperature,
          .entropy = doubles(view.stats.entropy_h),
          .largest_weight = doubles(view.stats.largest_weight_h),
          .sink_mass = doubles(view.stats.sink_mass_h)};
}

void add_kernels(const Transformer& model, InspectModel& out) {
  const auto find = [&](int64_t layer, const char* rest) {
    return model.parameters().find(fmt::format("model.layers.{}.self_attn.{}", layer, rest));
  };
  for (int64_t layer = 0; layer < model.config().layers; ++layer) {
    for (const bool before : {true, false}) {
      if (const Parameter* p =
              find(layer, before ? "key_query_before.weight" : "key_query_after.weight")) {
        for (int64_t head = 0; head < p->value.size(0); ++head)
          out.kernels.push_back({.layer = layer,
                                 .head = head,
                                 .before = before,
                                 .queries = p->value.size(1),
                                 .keys = p->value.size(2),
                                 .weights = doubles(p->value[head])});
      }
      if (const Parameter* p =
              find(layer, before ? "head_mix_before.weight" : "head_mix_after.weight")) {
        const at::Tensor mix = p->value.detach();
        const at::Tensor diagonal = mix.diagonal(0, 1, 2);
        const auto others =
            static_cast<double>(std::max<int64_t>(1, mix.numel() - diagonal.numel()));
        out.mixes.push_back(
            {.layer = layer,
             .before = before,
             .diagonal_mean = diagonal.mean().item<double>(),
             .diagonal_least = diagonal.min().item<double>(),
             .other_mean_size = (mix.abs().sum() - diagonal.abs().sum()).item<double>() / others});
      }
    }
  }
}

std::vector<InspectGroup> groups_of(const at::Tensor& g_tk, const std::vector<std::string>& pieces,
                                    int64_t top) {
  const int64_t tokens = g_tk.size(0), groups = g_tk.size(1);
  const at::Tensor choice = g_tk.argmax(-1).contiguous();
  std::vector<InspectGroup> all;
  for (int64_t k = 0; k < groups; ++k) {
    InspectGroup group{.group = k};
    std::map<std::string, int64_t> texts, classes;
    int64_t count = 0;
    for (int64_t i = 0; i < tokens; ++i) {
      if (choice.const_data_ptr<int64_t>()[i] != k) continue;
      ++count;
      group.confidence += g_tk[i][k].item<double>();
      ++texts[pieces[static_cast<size_t>(i)]];
      ++classes[token_class(pieces[static_cast<size_t>(i)])];
    }
    group.share = static_cast<double>(count) / static_cast<double>(tokens);
    if (count > 0) {
      group.confidence /= static_cast<double>(count);
      const auto largest =
          std::ranges::max_element(classes, {}, [](const auto& entry) { return entry.second; });
      group.main_class = largest->first;
      group.purity = static_cast<double>(largest->second) / static_cast<double>(count);
    }
    for (const auto& [text, n] : texts) group.top_tokens.push_back({text, n});
    std::ranges::stable_sort(group.top_tokens, std::greater{}, &InspectToken::count);
    if (std::ssize(group.top_tokens) > top) group.top_tokens.resize(static_cast<size_t>(top));
    all.push_back(std::move(group));
  }
  return all;
}

bool says_something(const std::string& piece) {
  const std::string kind = token_class(piece);
  return kind != "space" && kind != "punctuation";
}

/// The `most` distant pairs of words that agree most, in the memory of some rows of pairs.
std::vector<InspectPair> pairs_of(const FocusSpec& spec, const at::Tensor& g_tk,
                                  const std::vector<std::string>& pieces, int64_t most) {
  struct Pair {
    double agreement = 0;
    int64_t query = 0, key = 0;
  };
  const auto before = [](const Pair& x, const Pair& y) {
    return std::tuple{-x.agreement, -x.query, -x.key} < std::tuple{-y.agreement, -y.query, -y.key};
  };
  constexpr int64_t kRows = 64;
  const int64_t tokens = g_tk.size(0);
  std::vector<bool> speaks;
  for (const std::string& piece : pieces) speaks.push_back(says_something(piece));
  std::vector<Pair> best;  // a heap, the last of them in front
  for (int64_t begin = 0; begin < tokens; begin += kRows) {
    const int64_t end = std::min(begin + kRows, tokens);
    const at::Tensor agreement =
        at::matmul(g_tk.narrow(0, begin, end - begin), g_tk.t()).to(at::kDouble).contiguous();
    const double* a = agreement.const_data_ptr<double>();
    for (int64_t i = begin; i < end; ++i) {
      if (!speaks[static_cast<size_t>(i)]) continue;
      for (int64_t j = spec.sinks; j <= i - spec.window; ++j) {
        const Pair pair{.agreement = a[(i - begin) * tokens + j], .query = i, .key = j};
        const bool full = std::ssize(best) == most;
        if (!speaks[static_cast<size_t>(j)] || most == 0) continue;
        if (full && !before(pair, best.front())) continue;
        if (full) {
          std::ranges::pop_heap(best, before);
          best.pop_back();
        }
        best.push_back(pair);
        std::ranges::push_heap(best, before);
      }
    }
  }
  std::ranges::sort_heap(best, before);
  std::vector<InspectPair> all;
  for (const Pair& pair : best)
    all.push_back({.query = pair.query,
                   .key = pair.key,
                   .query_text = pieces[static_cast<size_t>(pair.query)],
                   .key_text = pieces[static_cast<size_t>(pair.key)],
                   .agreement = pair.agreement});
  return all;
}

}  // namespace

std::string token_class(std::string_view piece) {
  const size_t begin = piece.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return "space";
  const auto first = static_cast<unsigned char>(piece[begin]);
  if (std::isdigit(first)) return "digits";
  if (std::isalpha(first) || first >= 0x80)
    return begin > 0 || std::isupper(first) ? "word" : "continuation";
  return "punctuation";
}

InspectModel inspect_model(const std::string& name, const Transformer& model,
                           const Tokenizer& tokenizer, const std::string& text,
                           const InspectOptions& options) {
  check_wanted(options, model.config());
  require<InputError>(!text.empty(), "inspect", "the text must have a character; it is empty");
  Pieces pieces = pieces_of(model, tokenizer, text, options.tokens);
  const std::set<int64_t> sorted(options.heads.begin(), options.heads.end());
  const std::vector<int64_t> heads(sorted.begin(), sorted.end());
  const std::vector<LayerView> views =
      model.look(pieces.input, {.layers = options.layers, .heads = heads});
  InspectModel out = inspect_views(name, model, std::move(pieces.raw), views, options);
  for (size_t layer = 0; layer < views.size(); ++layer) {
    const at::Tensor& weights = views[layer].weights_hqs;
    for (int64_t n = 0; weights.defined() && n < weights.size(0); ++n)
      out.maps.push_back(attention_map(static_cast<int64_t>(layer),
                                       heads.empty() ? n : heads[static_cast<size_t>(n)],
                                       pieces.printable, weights[n]));
  }
  return out;
}

InspectModel inspect_views(const std::string& name, const Transformer& model,
                           std::vector<std::string> pieces, std::span<const LayerView> views,
                           const InspectOptions& options) {
  InspectModel out{.name = name, .tokens = std::move(pieces)};
  for (size_t n = 0; n < views.size(); ++n) {
    const auto layer = static_cast<int64_t>(n);
    out.layers.push_back(layer_of(views[n], layer));
    require_numbers(out.layers.back());
    if (!views[n].spec.focus.active()) continue;
    const FocusSpec& spec = views[n].spec.focus;
    const at::Tensor g = views[n].groups.groups.groups_btk[0].to(at::kCPU, at::kDouble);
    const at::Tensor choice = g.argmax(-1).contiguous();
    const PairsKept kept = pairs_kept(spec, views[n].groups.groups.members_bt, {});
    out.focus.push_back({.layer = layer,
                         .pairs_kept = kept.all,
                         .distant_kept = kept.distant,
                         .groups = groups_of(g, out.tokens, options.top_tokens),
                         .first_choices = {choice.const_data_ptr<int64_t>(),
                                           choice.const_data_ptr<int64_t>() + choice.numel()},
                         .pairs = pairs_of(spec, g, out.tokens, options.pairs)});
  }
  add_kernels(model, out);
  return out;
}

}  // namespace fovea
