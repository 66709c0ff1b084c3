// A claim's numbers in a result file: the difference between two variants, with the tests of all
// others of the same study.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "fovea/config/fields.h"
#include "fovea/report/statistics.h"

namespace fovea {

/// Which numbers of a result file.
///
/// Kinds of files, told apart by their keys:
///   variants  compare.json: value is "bits_per_byte", "perplexity" (its logarithm), "task:NAME";
///             or one of the last logged step: "ln_z_rms", or "temperature_by_depth", t of the
///             last layer minus that of the first
///   systems   of `fovea eval --systems`: "perplexity" or "copy" (logarithms), "needles", "pairs";
///             a name with "{seed}" stands for one system a seed, another for one run whose windows
///             of text are the pairs
///   runs      a list of `variant`, `seed` and values by name; "log:NAME" takes the logarithm
///   rows      numbers kept from a page: `values` by seed, or `mean`, `deviation` and `runs`, and a
///             `difference` with its `error` to the file's `reference`; `pairs` says what the
///             values are, if not seeds
///   against   tasks.json of `fovea eval --tasks --against`: `variant` is a task, or "mean" of all;
///             questions are the pairs, and a task without any difference counts as if one question
///             had differed
///   results   a benchmark: `variant` names the row, value a key with q1, median and q3 of pairs
struct EvidenceQuery {
  std::string variant = {};
  std::string against = {};  ///< another variant; empty: the number `level`
  double level = 0;
  std::string value = "bits_per_byte";
  /// JSON pointer of a part of a kept file: "/long". With "{seed}": one part a training, from 0 on,
  /// which test_over_trainings() puts together.
  std::string at = {};
  int64_t length = 0;        ///< of systems that were scored at several
  int64_t minus_length = 0;  ///< > 0: by how much the difference at `length` exceeds that at this
  std::string unit = {};

  void describe(FieldVisitor& v);
};

struct Evidence {
  PairedTest test;                 ///< of variant minus against
  std::vector<PairedTest> family;  ///< all tests of the study, this one among them
  size_t place = 0;                ///< of this one in the family
  Interval quartiles = {};         ///< of a benchmark, in place of a test
  std::string pairs_are = "seeds";

  bool is_benchmark() const;
  /// Corrected by Holm over the family; NaN without a test.
  double corrected_p() const;
  /// Corrected p of the one-sided tests against a margin, and of both together.
  double p_below(double margin) const;
  double p_above(double margin) const;
  double p_equivalent(double margin) const;
};

/// InputError that names the file for variants, values and lengths that it does not have.
Evidence read_evidence(const nlohmann::ordered_json& file, const EvidenceQuery& query,
                       const std::string& name);

}  // namespace fovea
