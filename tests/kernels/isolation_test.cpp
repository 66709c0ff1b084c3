// A NaN or an infinity reaches the rows and keys that depend on it, and no others: these keep their
// bits (spec 9.10). ForcedIsa (attention_test.cpp) runs these tests on every instruction set, too.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>

#include "fovea/kernels/common/listed_plan.h"
#include "fovea/kernels/cpu/tile_sizes.h"
#include "tests/support/member_patterns.h"
#include "tests/support/pointwise_problem.h"

namespace fovea::isolation_test {
namespace {

using namespace fovea::testing;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What is not finite, of batch row 0 and head 0 alone.
struct Poison {
  std::string name;
  float value = kNaN;
  enum class Of { keys, values, queries, output_gradients } of = Of::keys;

  bool in_keys() const { return of == Of::keys || of == Of::values; }
};

const Poison kPoisons[] = {{"NaN in a key", kNaN, Poison::Of::keys},
                           {"NaN in a value", kNaN, Poison::Of::values},
                           {"an infinite value", -kInfinity, Poison::Of::values},
                           {"NaN in a query", kNaN, Poison::Of::queries},
                           {"an infinite query", kInfinity, Poison::Of::queries},
                           {"NaN in a gradient", kNaN, Poison::Of::output_gradients}};

template <class T>
void put(PointwiseProblem<T>& problem, const kernels::AttentionSizes& s, const Poison& poison,
         int64_t at) {
  const auto set = [&](std::vector<T>& x, int64_t heads, int64_t width) {
    from_float(poison.value, x[static_cast<size_t>(at * heads * width + width / 2)]);
  };
  switch (poison.of) {
    case Poison::Of::keys:
      return set(problem.keys(), s.kv_heads, s.head_dim);
    case Poison::Of::values:
      return set(problem.values(), s.kv_heads, s.value_dim);
    case Poison::Of::queries:
      return set(problem.queries(), s.heads, s.head_dim);
    case Poison::Of::output_gradients:
      return set(problem.output_gradients(), s.heads, s.value_dim);
  }
}

// Rows [batch][tokens][heads][width] of which `touched(b, token, head)` are NaN (if `all_nan`:
// after an infinity, a row may be any), the others as in `clean`.
template <class Touched>
void expect_rows(const std::vector<double>& got, const std::vector<double>& clean, int64_t heads,
                 int64_t tokens, int64_t width, bool all_nan, const Touched& touched,
                 const std::string& what) {
  int64_t wrong = 0;
  for (int64_t row = 0; row * width < std::ssize(got); ++row) {
    const bool bad = touched(row / heads / tokens, row / heads % tokens, row % heads);
    for (int64_t n = row * width; n < (row + 1) * width; ++n) {
      const double x = got[static_cast<size_t>(n)];
      const bool right = bad ? !all_nan || std::isnan(x) : x == clean[static_cast<size_t>(n)];
      wrong += right ? 0 : 1;
    }
  }
  EXPECT_EQ(wrong, 0) << what;
}

template <class T>
using Run = std::function<PointwiseNumbers(PointwiseProblem<T>&)>;

template <class T>
void expect_isolated(const PointwiseSettings& settings, const Run<T>& run, const Poison& poison,
                     int64_t at, const std::string& name) {
  const kernels::AttentionSizes& s = settings.sizes;
  PointwiseProblem<T> finite(settings), problem(settings);
  put(problem, s, poison, at);
  const PointwiseNumbers clean = run(finite), got = run(problem);
  const std::string what = name + ", " + poison.name;
  const int64_t group = s.heads / s.kv_heads;
  const auto row = [&](int64_t b, int64_t i, int64_t h) {
    if (b > 0) return false;
    return poison.in_keys() ? h / group == 0 && problem.sees(i, at) : h == 0 && i == at;
  };
  const bool backward_only = poison.of == Poison::Of::output_gradients;
  const bool nan = std::isnan(poison.value);
  expect_rows(
      got.out, clean.out, s.heads, s.queries, s.value_dim, nan,
      [&](int64_t b, int64_t i, int64_t h) { return !backward_only && row(b, i, h); },
      what + ": out");
  if (got.dq.empty()) return;
  expect_rows(got.dq, clean.dq, s.heads, s.queries, s.head_dim, nan, row, what + ": dq");
  const auto key = [&](int64_t b, int64_t j, int64_t g) {
    for (int64_t n = 0; n < group * s.queries; ++n) {
      if (row(b, n % s.queries, g * group + n / s.queries) && problem.sees(n % s.queries, j))
        return true;
    }
    return false;
  };
  expect_rows(got.dk, clean.dk, s.kv_heads, s.keys, s.head_dim, nan, key, what + ": dk");
  expect_rows(got.dv, clean.dv, s.kv_heads, s.keys, s.value_dim, nan, key, what + ": dv");
}

template <class T>
void expect_isolated_everywhere(const PointwiseSettings& settings, const Run<T>& run,
                                const std::string& name) {
  for (const Poison& poison : kPoisons) {
    for (const int64_t at : {int64_t{0}, int64_t{37}})
      expect_isolated<T>(settings, run, poison, at, name);
  }
}

PointwiseSettings settings_of(const std::function<void(PointwiseSettings&)>& change) {
  PointwiseSettings s{.sizes = {2, 4, 2, 100, 100, 16, 8}};
  change(s);
  return s;
}

TEST(AttentionKernels, NonFiniteNumbersStayWithTheRowsThatSeeThem) {
  const auto check = [](const std::string& name,
                        const std::function<void(PointwiseSettings&)>& change) {
    const PointwiseSettings s = settings_of(change);
    expect_isolated_everywhere<float>(
        s, [](auto& problem) { return problem.by_kernels(); }, name);
    if (s.documents > 1)
      expect_isolated_everywhere<BFloat16>(
          s, [](auto& problem) { return problem.by_kernels(); }, name);
  };
  using Form = kernels::PairGate::Form;
  check("causal", [](auto&) {});
  check("documents", [](auto& s) { s.documents = 5; });
  check("one-token documents", [](auto& s) { s.documents = 100; });
  check("window", [](auto& s) { s.mask.window = 9; });
  check("window with sinks", [](auto& s) { s.mask.window = 9, s.mask.sinks = 2; });
  check("window both ways", [](auto& s) { s.mask = {.causal = false, .window = 6}; });
  check("full documents", [](auto& s) { s.mask.causal = false, s.documents = 3; });
  check("strided", [](auto& s) {
    s.mask = {.window = 5, .sparsity = MaskRule::Sparsity::strided, .stride = 7};
  });
  check("everything", [](auto& s) {
    s.tau = s.alibi = s.bias = s.sink = true;
    s.soft_cap = 2.0, s.documents = 2, s.mask.window = 30;
  });
  for (const Form form :
       {Form::weight, Form::capped_weight, Form::sigmoid_weight, Form::sigmoid_logit})
    check("gate", [form](auto& s) {
      s.gate = {.form = form, .offset = 0.01f, .window = 8, .columns = 5};
      s.documents = 3;
    });
}

TEST(AttentionKernels, NonFiniteNumbersStayWithTheRowsThatSeeThemByEveryPlan) {
  for (const GroupedKind kind :
       {GroupedKind::dense, GroupedKind::block_sparse, GroupedKind::classes, GroupedKind::groups}) {
    const PointwiseSettings s = settings_of([&](auto& c) {
      c.documents = 2;
      c.members =
          kind == GroupedKind::dense ? std::vector<uint64_t>(100, 1) : sticky_sets(100, 5, 1, 9, 3);
      c.focus_window = 6;
      c.focus_sinks = kind == GroupedKind::dense ? 0 : 1;
    });
    const std::string name(enum_names(kind)[static_cast<size_t>(kind)]);
    const auto run = [kind](auto& problem) { return problem.by_plan(kind); };
    expect_isolated_everywhere<float>(s, run, name);
    expect_isolated_everywhere<BFloat16>(s, run, name);
  }
}

TEST(AttentionKernels, NonFiniteNumbersStayWithTheRowsThatSeeThemByLists) {
  std::vector<TokenPlace> places;
  std::vector<int32_t> list_of;
  for (int32_t n = 0; n < 100; ++n) {
    places.push_back({.document = n / 60, .position = n % 60});
    list_of.push_back(n / 12);
  }
  IntRowList visits;  // a list sees itself and, now and then, an earlier one
  for (int32_t list = 0; list < 9; ++list) {
    if (list % 3 == 2) visits.values.push_back(list - 2);
    if (list != 4) visits.values.push_back(list);
    visits.end_row();
  }
  const PointwiseSettings s = settings_of([&](auto& c) {
    c.places = places;
    c.related = [&](int64_t i, int64_t j) {
      return std::ranges::find(visits.of(list_of[i]), list_of[j]) != visits.of(list_of[i]).end();
    };
  });
  const GroupedPlan plan = make_listed_plan(
      {.places = places, .query_list = list_of, .key_list = list_of, .visits = visits.view()},
      kernels::kTileSizes);
  expect_isolated_everywhere<float>(
      s, [&](auto& problem) { return problem.by_plan(plan); }, "lists");
}

TEST(AttentionKernels, NonFiniteNumbersStayWithTheRowsThatSeeThemInDecoding) {
  const auto run = [](auto& problem) { return problem.by_decode(); };
  for (const int64_t window : {0, 9}) {
    for (const int64_t sinks : {0, 3}) {
      const PointwiseSettings s = settings_of([&](auto& c) {
        c.sizes.queries = 5;
        c.mask.window = window, c.mask.sinks = sinks;
      });
      for (const Poison& poison : kPoisons) {
        for (const int64_t at : {0, 1, 4, 37, 93, 97}) {
          if (!poison.in_keys() && at >= s.sizes.queries) continue;
          expect_isolated<float>(s, run, poison, at, "decoding");
          expect_isolated<BFloat16>(s, run, poison, at, "decoding");
        }
      }
    }
  }
}

}  // namespace
}  // namespace fovea::isolation_test
