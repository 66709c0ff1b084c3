// Random problems of grouped attention, forward and backward, against scalar loops in float64:
// lists, blocks of documents, clusters and memberships of every shape (spec 4.3, 11.5).
//
// Run with the address sanitizer they show reads and writes beyond packed operands.
// FOVEA_RANDOM_CASES sets the number of problems of each family (docs/building.md).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <omp.h>

#include <cstdlib>

#include "fovea/base/error.h"
#include "fovea/kernels/common/listed_plan.h"
#include "fovea/kernels/cpu/tile_sizes.h"
#include "tests/support/member_patterns.h"
#include "tests/support/pointwise_problem.h"

namespace fovea::grouped_random_test {
namespace {

using namespace fovea::testing;

int64_t cases() {
  const char* const set = std::getenv("FOVEA_RANDOM_CASES");
  return set != nullptr ? std::strtoll(set, nullptr, 10) : 500;
}

// Draws that read as what they decide.
class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}

  int64_t from(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random_.below(static_cast<uint64_t>(most - least + 1)));
  }
  bool chance(double probability) { return random_.uniform() < probability; }
  // Small numbers as often as large ones.
  int64_t size(int64_t most) { return from(1, chance(0.5) ? most : std::min<int64_t>(most, 40)); }
  Rng& random() { return random_; }

 private:
  Rng random_;
};

// Documents of any length, one token among them, at ascending positions with or without gaps.
std::vector<TokenPlace> draw_places(Draw& draw, int64_t tokens) {
  std::vector<TokenPlace> places;
  const bool gaps = draw.chance(0.3);
  const int64_t longest = draw.chance(0.4) ? tokens : draw.size(tokens);
  for (int64_t document = 0; std::ssize(places) < tokens; ++document) {
    const int64_t end = std::min(std::ssize(places) + draw.from(1, longest), tokens);
    for (int64_t at = draw.chance(0.2) ? draw.from(0, 50) : 0; std::ssize(places) < end;) {
      places.push_back({.document = document, .position = at});
      at += gaps ? draw.from(1, 3) : 1;
    }
  }
  return places;
}

PointwiseSettings draw_settings(Draw& draw) {
  const int64_t keys = draw.size(200), kv_heads = draw.from(1, 2);
  PointwiseSettings s;
  s.sizes = {.batch = 1,
             .heads = kv_heads * draw.from(1, 3),
             .kv_heads = kv_heads,
             .queries = draw.chance(0.7) ? keys : draw.from(1, keys),
             .keys = keys,
             .head_dim = 8 * draw.from(1, 3),
             .value_dim = 8 * draw.from(1, 3)};
  s.places = draw_places(draw, keys);
  s.tau = draw.chance(0.3);
  s.sink = draw.chance(0.2);
  s.soft_cap = draw.chance(0.2) ? 1.5 : 0.0;
  s.lse_gradient = draw.chance(0.5);
  return s;
}

template <class T>
std::string difference(const PointwiseNumbers& got, const PointwiseNumbers& truth) {
  constexpr bool exact = std::is_same_v<T, float>;
  constexpr double forward = exact ? 2e-5 : 2e-2, backward = exact ? 2e-4 : 6e-2;
  std::string wrong;
  // One query with one key has gradients that cancel; the terms are of size 1.
  const auto compare = [&](const char* name, const auto& a, const auto& b, double bound) {
    const double error = numbers_error(a, b, 1.0);
    if (!(error < bound)) wrong += fmt::format(" {} ({:.2g} > {:.2g})", name, error, bound);
  };
  compare("out", got.out, truth.out, forward);
  compare("lse", got.lse, truth.lse, forward);
  compare("dq", got.dq, truth.dq, backward);
  compare("dk", got.dk, truth.dk, backward);
  compare("dv", got.dv, truth.dv, backward);
  compare("dtau", got.dtau, truth.dtau, backward);
  compare("dsink", got.dsink, truth.dsink, backward);
  return wrong;
}

template <class T, class PlanOf>
void expect_truth(const PointwiseSettings& settings, const PlanOf& plan_of, uint64_t seed) {
  PointwiseProblem<T> problem(settings, seed);
  EXPECT_EQ(difference<T>(problem.by_plan(plan_of(problem)), problem.by_formula()), "")
      << "case " << seed << ", " << settings.sizes.keys << " keys, " << settings.sizes.queries
      << " queries";
}

// A list a token, -1 for none, and the lists that a list's queries see.
struct Lists {
  std::vector<int32_t> of_query, of_key;
  IntRowList visits;
  int64_t keep = 0;

  bool related(const std::vector<TokenPlace>& places, int64_t query, int64_t key) const {
    const int64_t first = std::ssize(of_key) - std::ssize(of_query);
    const int32_t own = of_query[query - first], other = of_key[key];
    if (own < 0 || other < 0 || places[query].document != places[key].document || key > query ||
        std::ranges::find(visits.of(own), other) == visits.of(own).end())
      return false;
    int64_t later = 0;
    for (int64_t n = key + 1; n <= query && keep > 0; ++n)
      later += of_key[n] == other && places[n].document == places[key].document ? 1 : 0;
    return keep == 0 || later < keep;
  }
};

void expect_lists(PointwiseSettings settings, const Lists& lists, Draw& draw, uint64_t seed) {
  settings.related = [&](int64_t i, int64_t j) { return lists.related(settings.places, i, j); };
  const auto plan_of = [&](const auto&) {
    return make_listed_plan({.places = settings.places,
                             .query_list = lists.of_query,
                             .key_list = lists.of_key,
                             .visits = lists.visits.view(),
                             .keep = lists.keep},
                            kernels::kTileSizes);
  };
  draw.chance(0.7) ? expect_truth<float>(settings, plan_of, seed)
                   : expect_truth<BFloat16>(settings, plan_of, seed);
}

template <class Case>
void run_cases(const Case& one) {
  const int before = omp_get_max_threads();
  for (int64_t n = 0; n < cases() && !::testing::Test::HasFailure(); ++n) {
    Draw draw(static_cast<uint64_t>(n));
    omp_set_num_threads(draw.chance(0.5) ? 1 : 4);
    one(draw, static_cast<uint64_t>(n));
  }
  omp_set_num_threads(before);
}

TEST(RandomGroupedKernels, BlocksOfDocumentsEqualTheFormula) {
  run_cases([](Draw& draw, uint64_t seed) {
    const PointwiseSettings settings = draw_settings(draw);
    const int64_t size = draw.size(70), queries = settings.sizes.queries;
    const double share = draw.chance(0.2) ? 0.0 : draw.random().uniform();
    Lists lists;
    int64_t block = -1, first = 0;  // the document's first list
    for (size_t n = 0; n < settings.places.size(); ++n) {
      const TokenPlace& at = settings.places[n];
      const bool starts = n == 0 || at.document != settings.places[n - 1].document;
      if (starts || at.position / size != block) {
        const int64_t list = std::ssize(lists.visits.begin) - 1;
        if (starts) first = list;
        for (int64_t other = first; other <= list; ++other)
          if (draw.chance(share)) lists.visits.values.push_back(static_cast<int32_t>(other));
        lists.visits.begin.push_back(static_cast<int32_t>(lists.visits.values.size()));
      }
      block = at.position / size;
      lists.of_key.push_back(static_cast<int32_t>(lists.visits.begin.size()) - 2);
    }
    lists.of_query.assign(lists.of_key.end() - queries, lists.of_key.end());
    expect_lists(settings, lists, draw, seed);
  });
}

TEST(RandomGroupedKernels, AnyListsEqualTheFormula) {
  run_cases([](Draw& draw, uint64_t seed) {
    const PointwiseSettings settings = draw_settings(draw);
    const int64_t count = draw.size(60);
    const double share = draw.chance(0.3) ? 0.0 : draw.random().uniform();
    Lists lists;
    const auto list = [&] { return static_cast<int32_t>(draw.from(-1, count - 1)); };
    for (int64_t n = 0; n < settings.sizes.keys; ++n) lists.of_key.push_back(list());
    for (int64_t n = 0; n < settings.sizes.queries; ++n) lists.of_query.push_back(list());
    for (int64_t a = 0; a < count; ++a) {
      for (int32_t b = 0; b < count; ++b)
        if (draw.chance(share / 2)) lists.visits.values.push_back(b);
      lists.visits.begin.push_back(static_cast<int32_t>(lists.visits.values.size()));
    }
    expect_lists(settings, lists, draw, seed);
  });
}

TEST(RandomGroupedKernels, ClustersEqualTheFormula) {
  run_cases([](Draw& draw, uint64_t seed) {
    const PointwiseSettings settings = draw_settings(draw);
    const int64_t count = draw.from(1, 12);
    Lists lists{.keep = draw.size(80)};
    const auto list = [&] { return static_cast<int32_t>(draw.from(0, count - 1)); };
    for (int64_t n = 0; n < settings.sizes.keys; ++n) lists.of_key.push_back(list());
    for (int64_t n = 0; n < settings.sizes.queries; ++n) lists.of_query.push_back(list());
    for (int32_t c = 0; c < count; ++c) {
      lists.visits.values.push_back(c);
      lists.visits.begin.push_back(c + 1);
    }
    expect_lists(settings, lists, draw, seed);
  });
}

// Sets of every size, none at all among them, kept for a while or not.
std::vector<uint64_t> draw_members(Draw& draw, int64_t tokens, int64_t groups) {
  const int64_t most = draw.from(1, std::min<int64_t>(groups, 4)), kinds = draw.size(20);
  const double outside = draw.chance(0.3) ? 0.3 : 0.0;
  std::vector<uint64_t> known, members;
  for (int64_t n = 0; n < kinds; ++n)
    known.push_back(draw.chance(outside) ? 0
                                         : random_set(draw.random(), groups, draw.from(1, most)));
  const double anew = draw.chance(0.5) ? 1.0 : 0.05;
  for (int64_t n = 0; n < tokens; ++n)
    members.push_back(n == 0 || draw.chance(anew) ? known[draw.from(0, kinds - 1)]
                                                  : members.back());
  return members;
}

TEST(RandomGroupedKernels, MembershipsEqualTheFormulaByEveryPlan) {
  run_cases([](Draw& draw, uint64_t seed) {
    PointwiseSettings settings = draw_settings(draw);
    settings.groups = draw.chance(0.8) ? draw.from(1, 9) : 64;
    settings.members = draw_members(draw, settings.sizes.keys, settings.groups);
    settings.focus_window = draw.size(80);
    settings.focus_sinks = draw.chance(0.4) ? draw.from(0, 6) : 0;
    if (draw.chance(0.3)) settings.mask.window = settings.focus_window + draw.from(0, 60);
    if (draw.chance(0.1)) settings.mask.window = draw.from(1, settings.focus_window);
    if (settings.mask.window > 0 && draw.chance(0.5)) settings.mask.sinks = draw.from(0, 4);
    const auto kind = static_cast<GroupedKind>(draw.from(0, 3));
    const auto plan_of = [&](const auto& problem) {
      try {
        return problem.plan(kind);
      } catch (const ConfigError&) {  // not of these memberships or this mask
        return problem.plan(std::nullopt);
      }
    };
    draw.chance(0.7) ? expect_truth<float>(settings, plan_of, seed)
                     : expect_truth<BFloat16>(settings, plan_of, seed);
  });
}

}  // namespace
}  // namespace fovea::grouped_random_test
