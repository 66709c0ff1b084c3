// The claims of the papers that Fovea reproduces: each with the paper's number, a command, a result
// file and a rule that turns the file into a verdict.
//
// The claims are recipes/claims/*.yaml, one file a paper; they are compiled in. Verdicts are never
// written down: decide() computes them from the result files (claim_evidence.h), so that a page
// cannot say more than its numbers. `fovea reproduce` lists them, runs their commands, and prints
// docs/findings/claims.md.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fovea/config/fields.h"
#include "fovea/report/claim_evidence.h"

namespace fovea {

/// The form of a claim about `variant` minus `against` (for a measured value):
///   lower, higher          the difference has this sign
///   not_higher, not_lower  it costs nothing: no more than `margin` above, or below
///   equal                  it lies inside ±margin
///   tested                 an identity that a test of this repository checks
enum class ClaimRule { lower, higher, not_higher, not_lower, equal, tested };
std::span<const std::string_view> enum_names(ClaimRule);

/// The verdict at the size that was measured here:
///   reproduced  p < 0.05 (Holm) in the claimed direction; for "costs nothing" and "equal" the
///               one-sided tests against the margin have p < 0.05 (Holm)
///   refuted     p < 0.05 (Holm) in the other direction; for the others a difference whose whole
///               interval is beyond the margin
///   bounded     not decided, but a claimed gain of more than `margin` is excluded (p < 0.05)
///   undecided   none of these, one seed, or a stated flaw of the study
///   not_run     no result file
enum class ClaimVerdict { reproduced, refuted, bounded, undecided, not_run };
std::span<const std::string_view> enum_names(ClaimVerdict);

struct Claim {
  std::string id = {};     ///< unique in its file: "table-5", or "table-5/order" of several claims
  std::string place = {};  ///< in the paper: "Table 5"
  std::string claim = {};  ///< one sentence
  std::string paper = {};  ///< the paper's numbers
  std::string here = {};   ///< model, data, steps and seeds of the result
  std::string command = {};  ///< `fovea ...`, the small twin, or several with " && "; may be empty
  std::string output = {};   ///< the result file that the command writes
  std::string result = {};   ///< the kept result file, or the file of the test
  std::string paper_recipe = {};  ///< the same at the paper's size
  std::string flaw = {};          ///< why the numbers allow no verdict; empty where they do
  std::string note = {};          ///< what a reader of the verdict should know
  ClaimRule rule = ClaimRule::lower;
  double margin = 0;  ///< in units of the value; 0 = the file's
  EvidenceQuery measure = {};

  void describe(FieldVisitor& v);
};

/// The claims of one paper.
struct ClaimFile {
  std::string seed = {};   ///< the prefix of ids: "mta"
  std::string paper = {};  ///< title and source
  double margin = 0;       ///< the largest difference that does not matter, for claims without one
  std::vector<Claim> claims = {};

  void describe(FieldVisitor& v);
};

/// A claim with what its result file says.
struct DecidedClaim {
  std::string seed;
  Claim claim;
  ClaimVerdict verdict = ClaimVerdict::not_run;
  std::optional<Evidence> evidence = {};  ///< where a result file was read
  std::string reason = {};                ///< why there is no verdict; empty where there is one

  std::string id() const { return seed + "/" + claim.id; }
};

/// All files of recipes/claims. ConfigError with file:line for a bad one.
std::vector<ClaimFile> known_claims();
/// One file. ConfigError for equal ids, a rule without its margin, a result without a measure.
ClaimFile parse_claims(const std::string& text, const std::string& name);

/// The verdict by the rule. `result` replaces claim.result, which is below `root`. InputError where
/// a result file lacks what the claim asks for.
DecidedClaim decide(const ClaimFile& file, const Claim& claim, const std::filesystem::path& root,
                    const std::filesystem::path& result = {});
std::vector<DecidedClaim> decide_all(std::span<const ClaimFile> files,
                                     const std::filesystem::path& root);

/// Those with that id, or that begin with it: "mta/table-5" finds "mta/table-5/order". ConfigError
/// with the nearest name where there is none.
std::vector<DecidedClaim> claims_named(std::span<const DecidedClaim> claims,
                                       const std::string& name);

/// "-0.1200 bits per byte (-0.1500 to -0.0900, 3 seeds, p 0.004)", "test Suite.Name", or empty.
std::string effect_text(const DecidedClaim& claim);
/// docs/findings/claims.md.
std::string claims_markdown(std::span<const ClaimFile> files, std::span<const DecidedClaim> claims);

/// File names and texts of recipes/claims, generated into the build tree.
std::span<const std::pair<const char*, const char*>> claim_texts();

}  // namespace fovea
