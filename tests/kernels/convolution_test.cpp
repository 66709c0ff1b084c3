// The key-query convolution and its gradients against the formula, on every instruction set that
// this machine has (spec 3.1, 3.4, Eq. 5).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/mixing/convolution.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fovea/base/rng.h"
#include "tests/support/kernels_of_this_machine.h"

namespace fovea::kernels::convolution_test {
namespace {

struct Settings {
  int64_t sequences, heads, rows, results, keys, queries, taps;
  bool documents = false, causal = false;
};

// Odd and even kernels, more taps than keys, more queries than rows, lengths around the stretches.
constexpr Settings kSettings[] = {
    {1, 1, 1, 1, 1, 1, 1},
    {1, 2, 9, 9, 9, 3, 5},
    {2, 3, 20, 20, 20, 2, 4, true},
    {2, 1, 70, 70, 70, 6, 11, true, true},
    {1, 2, 12, 5, 130, 4, 15, true},
    {1, 1, 3, 3, 5, 7, 12},
    {1, 1, 200, 200, 200, 2, 9, false, true},
    {3, 1, 6, 1, 64, 6, 11},
};

struct Case {
  Convolution<double> shape;
  std::vector<double> x, dy, kernel;
  std::vector<int32_t> first;
};

std::vector<double> normals(Rng& rng, int64_t n) {
  std::vector<double> all(static_cast<size_t>(n));
  for (double& x : all) x = rng.normal();
  return all;
}

Case make(const Settings& s) {
  Rng rng(static_cast<uint64_t>(s.rows * 31 + s.taps));
  Case c;
  c.shape = {.maps = s.sequences * s.heads,
             .heads = s.heads,
             .rows = s.rows,
             .results = s.results,
             .keys = s.keys,
             .queries = s.queries,
             .taps = s.taps,
             .sequences = s.sequences};
  c.x = normals(rng, c.shape.maps * s.rows * s.keys);
  c.dy = normals(rng, c.shape.maps * s.results * s.keys);
  c.kernel = normals(rng, s.heads * s.queries * s.taps);
  const auto hide_future = [&](std::vector<double>& map, int64_t rows) {
    for (size_t n = 0; n < map.size(); ++n) {
      const auto at = static_cast<int64_t>(n);
      if (at % s.keys > at / s.keys % rows) map[n] = 0;
    }
  };
  if (s.causal) hide_future(c.x, s.rows);
  if (s.causal) hide_future(c.dy, s.results);
  for (int64_t n = 0; s.documents && n < s.sequences * s.rows; ++n) {
    const auto row = static_cast<int32_t>(n % s.rows);
    c.first.push_back(row == 0 || rng.below(5) == 0 ? row : c.first.back());
  }
  return c;
}

// The sum over all pairs that the formula has: term(index in kernel, in x, in y).
template <class F>
void each_term(const Case& c, const F& term) {
  const Convolution<double>& s = c.shape;
  for (int64_t m = 0; m < s.maps; ++m)
    for (int64_t i = s.rows - s.results; i < s.rows; ++i)
      for (int64_t a = 0; a < s.queries; ++a)
        for (int64_t j = 0; j < s.keys; ++j)
          for (int64_t t = 0; t < s.taps; ++t) {
            const int64_t row = i - (s.queries - 1 - a), key = j + t - (s.taps - 1) / 2;
            const int64_t first =
                c.first.empty() ? 0 : c.first[static_cast<size_t>(m / s.heads * s.rows + i)];
            if (row < first || key < 0 || key >= s.keys) continue;
            term(static_cast<size_t>((m % s.heads * s.queries + a) * s.taps + t),
                 static_cast<size_t>((m * s.rows + row) * s.keys + key),
                 static_cast<size_t>((m * s.results + i - (s.rows - s.results)) * s.keys + j),
                 static_cast<size_t>((m * s.queries + a) * s.taps + t));
          }
}

template <class T>
std::vector<T> as(const std::vector<double>& x) {
  return std::vector<T>(x.begin(), x.end());
}

template <class T>
void expect_close(const std::vector<T>& found, const std::vector<double>& truth,
                  const std::string& what) {
  const double tolerance = sizeof(T) == 4 ? 2e-4 : 1e-11;
  ASSERT_EQ(found.size(), truth.size());
  for (size_t n = 0; n < truth.size(); ++n)
    ASSERT_NEAR(static_cast<double>(found[n]), truth[n], tolerance) << what << " at " << n;
}

template <class T>
void expect_formula(const ConvolutionTable<T>& table, const Settings& settings,
                    const std::string& what) {
  const Case c = make(settings);
  std::vector<double> y(c.dy.size()), dx(c.x.size());
  std::vector<double> dkernel(static_cast<size_t>(c.shape.maps * c.shape.queries * c.shape.taps));
  each_term(c, [&](size_t k, size_t x_at, size_t y_at, size_t k_of_map) {
    y[y_at] += c.kernel[k] * c.x[x_at];
    dx[x_at] += c.kernel[k] * c.dy[y_at];
    dkernel[k_of_map] += c.dy[y_at] * c.x[x_at];
  });
  const std::vector<T> x = as<T>(c.x), dy = as<T>(c.dy), kernel = as<T>(c.kernel);
  Convolution<T> s{.maps = c.shape.maps,
                   .heads = c.shape.heads,
                   .rows = c.shape.rows,
                   .results = c.shape.results,
                   .keys = c.shape.keys,
                   .queries = c.shape.queries,
                   .taps = c.shape.taps,
                   .kernel = kernel.data(),
                   .first_row = c.first.empty() ? nullptr : c.first.data(),
                   .sequences = c.shape.sequences};
  // What was there before must not matter.
  std::vector<T> found_y(y.size(), T(7)), found_dx(dx.size(), T(7)), found_dk(dkernel.size(), T(7));
  const ConvolutionWorkspace<T> workspace(s);
  for (int64_t map = 0; map < s.maps; ++map) {
    table.forward(s, map, x.data(), found_y.data(), workspace.scratch());
    table.input_gradient(s, map, dy.data(), found_dx.data(), workspace.scratch());
    table.kernel_gradient(s, map, x.data(), dy.data(), found_dk.data(), workspace.scratch());
  }
  expect_close(found_y, y, what + ": y");
  expect_close(found_dx, dx, what + ": dx");
  expect_close(found_dk, dkernel, what + ": dkernel");
}

template <class T>
void expect_formula_everywhere(const std::string& what) {
  for (const ConvolutionTable<T>* table : testing::kernels_of_this_machine<ConvolutionTable<T>>())
    for (const Settings& s : kSettings)
      expect_formula<T>(*table, s, what + ", " + std::to_string(s.rows) + " rows");
}

TEST(Convolution, AndItsGradientsEqualTheFormulaOnEveryInstructionSet) {
  expect_formula_everywhere<float>("float");
  expect_formula_everywhere<double>("double");
}

}  // namespace
}  // namespace fovea::kernels::convolution_test
