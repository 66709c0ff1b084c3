// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/report/claims.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/base/json_depth.h"
#include "fovea/base/nearest_name.h"
#include "fovea/config/reader.h"
#include "fovea/report/format.h"

namespace fovea {
namespace {

constexpr std::string_view kClaimRules[] = {"lower",     "higher", "not_higher",
                                            "not_lower", "equal",  "tested"};
constexpr std::string_view kClaimVerdicts[] = {"reproduced", "refuted", "bounded", "undecided",
                                               "not run"};

/// Quartiles of fewer rounds say nothing of the spread.
constexpr int64_t kFewestRounds = 3;

/// The rule as a claim that the difference is low: those about high values are turned round.
struct Turned {
  ClaimRule rule;
  double mean, low, high;          // of the difference
  double p, below, above, inside;  // corrected
};

Turned turned(const Evidence& evidence, ClaimRule rule, double margin) {
  Turned out{.rule = rule,
             .mean = evidence.test.mean,
             .low = evidence.test.interval.low,
             .high = evidence.test.interval.high,
             .p = evidence.corrected_p(),
             .below = evidence.p_below(margin),
             .above = evidence.p_above(margin),
             .inside = evidence.p_equivalent(margin)};
  if (rule != ClaimRule::higher && rule != ClaimRule::not_lower) return out;
  out.rule = rule == ClaimRule::higher ? ClaimRule::lower : ClaimRule::not_higher;
  out.mean = -out.mean;
  std::swap(out.low, out.high);
  out.low = -out.low;
  out.high = -out.high;
  std::swap(out.below, out.above);
  return out;
}

ClaimVerdict verdict_of_test(const Turned& t, double margin) {
  const bool different = t.p < kSignificance;
  switch (t.rule) {
    case ClaimRule::lower:
      if (different) return t.mean < 0 ? ClaimVerdict::reproduced : ClaimVerdict::refuted;
      return t.above < kSignificance ? ClaimVerdict::bounded : ClaimVerdict::undecided;
    case ClaimRule::not_higher:
      if (t.below < kSignificance) return ClaimVerdict::reproduced;
      return different && t.low > margin ? ClaimVerdict::refuted : ClaimVerdict::undecided;
    default:
      if (t.inside < kSignificance) return ClaimVerdict::reproduced;
      return different && (t.low > margin || t.high < -margin) ? ClaimVerdict::refuted
                                                               : ClaimVerdict::undecided;
  }
}

/// Quartiles of a benchmark's ratios, wholly on one side, in place of a test.
ClaimVerdict verdict_of_quartiles(const Evidence& evidence, ClaimRule rule) {
  const bool claims_higher = rule == ClaimRule::higher;
  if (evidence.quartiles.low > 0)
    return claims_higher ? ClaimVerdict::reproduced : ClaimVerdict::refuted;
  if (evidence.quartiles.high < 0)
    return claims_higher ? ClaimVerdict::refuted : ClaimVerdict::reproduced;
  return ClaimVerdict::undecided;
}

nlohmann::ordered_json read_json(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  require_shallow_json<InputError>(text, path.string());
  try {
    return nlohmann::ordered_json::parse(text);
  } catch (const nlohmann::ordered_json::parse_error& error) {
    fail<InputError>(path.string(), "expected JSON; {}", error.what());
  }
}

/// "Suite.Name" of claim.measure.variant, in the test file claim.result.
void decide_tested(DecidedClaim& decided, const std::filesystem::path& file) {
  const std::string& test = decided.claim.measure.variant;
  const size_t dot = test.find('.');
  const std::string source = read_file(file);
  require<InputError>(
      dot != std::string::npos &&
          source.find(fmt::format("({}, {})", test.substr(0, dot), test.substr(dot + 1))) !=
              std::string::npos,
      file.string(), "expected the test '{}', which claim '{}' names", test, decided.id());
  decided.verdict = ClaimVerdict::reproduced;
}

void check(const ClaimFile& file, const std::string& name) {
  std::set<std::string> ids;
  for (const Claim& claim : file.claims) {
    const auto need = [&](bool fine, std::string_view what) {
      require<ConfigError>(fine, name, "claim '{}' needs {}", claim.id, what);
    };
    need(!claim.id.empty() && ids.insert(claim.id).second, "an 'id' of its own");
    need(!claim.place.empty() && !claim.claim.empty(), "'place' and 'claim'");
    need(claim.margin >= 0 && (claim.margin > 0 || file.margin > 0), "a 'margin' above 0");
    need(claim.result.empty() || !claim.measure.variant.empty(), "'measure.variant'");
    need(claim.result.empty() || claim.rule == ClaimRule::tested || !claim.here.empty(),
         "'here': what its result was measured on");
    need(claim.command.empty() || claim.command.starts_with("fovea "),
         "a 'command' that begins with 'fovea '");
  }
}

}  // namespace

std::span<const std::string_view> enum_names(ClaimRule) { return kClaimRules; }
std::span<const std::string_view> enum_names(ClaimVerdict) { return kClaimVerdicts; }

void Claim::describe(FieldVisitor& v) {
  v.text({"id", "unique in its file: table-5, or table-5/order"}, id);
  v.text({"place", "in the paper: Table 5"}, place);
  v.text({"claim", "one sentence"}, claim);
  v.text({"paper", "the paper's numbers"}, paper);
  v.text({"here", "model, data, steps and seeds of the result"}, here);
  v.text({"command", "the small twin: fovea ..."}, command);
  v.text({"output", "the result file that the command writes"}, output);
  v.text({"result", "the kept result file; for `tested` the file of the test"}, result);
  v.text({"paper_recipe", "the same at the paper's size"}, paper_recipe);
  v.text({"flaw", "why the numbers allow no verdict"}, flaw);
  v.text({"note", "what a reader of the verdict should know"}, note);
  v.choice({"rule", "the form of the claim"}, rule);
  v.real({"margin", "the largest difference that does not matter; 0 = the file's", {0, 1e9}},
         margin);
  v.nested({"measure", "which numbers of the result"}, measure);
}

void ClaimFile::describe(FieldVisitor& v) {
  v.text({"seed", "the prefix of ids"}, seed);
  v.text({"paper", "title and source"}, paper);
  v.real({"margin", "for claims without one", {0, 1e9}}, margin);
  v.nested_list({"claims", "of the paper"}, claims);
}

ClaimFile parse_claims(const std::string& text, const std::string& name) {
  ClaimFile file;
  read_fields(parse_yaml(text, name), file);
  require<ConfigError>(!file.seed.empty() && !file.claims.empty(), name,
                       "expected 'seed' and 'claims'");
  check(file, name);
  return file;
}

std::vector<ClaimFile> known_claims() {
  std::vector<ClaimFile> files;
  for (const auto& [name, text] : claim_texts()) files.push_back(parse_claims(text, name));
  return files;
}

DecidedClaim decide(const ClaimFile& file, const Claim& claim, const std::filesystem::path& root,
                    const std::filesystem::path& result) {
  DecidedClaim decided{.seed = file.seed, .claim = claim};
  if (claim.result.empty() && result.empty()) {
    decided.reason = claim.flaw.empty() ? "no result yet" : claim.flaw;
    return decided;
  }
  const std::filesystem::path path = result.empty() ? root / claim.result : result;
  if (!std::filesystem::exists(path)) {
    decided.reason = fmt::format("'{}' is not here", path.string());
    return decided;
  }
  if (claim.rule == ClaimRule::tested) {
    decide_tested(decided, path);
    return decided;
  }
  const nlohmann::ordered_json whole = read_json(path);
  if (!claim.measure.at.empty() && whole.contains("variants")) {
    decided.reason =
        fmt::format("a run's own file has no {}; docs/findings/ says how the result was measured",
                    claim.measure.unit.empty() ? claim.measure.at
                                               : claim.measure.unit + " of " + claim.measure.at);
    return decided;
  }
  decided.evidence = read_evidence(whole, claim.measure, path.string());
  const Evidence& evidence = *decided.evidence;
  const double margin = claim.margin > 0 ? claim.margin : file.margin;
  if (!claim.flaw.empty()) {
    decided.reason = claim.flaw;
  } else if (evidence.is_benchmark() && evidence.test.pairs < kFewestRounds) {
    decided.reason = "one measurement";
  } else if (evidence.is_benchmark()) {
    decided.verdict = verdict_of_quartiles(evidence, claim.rule);
    return decided;
  } else if (evidence.test.pairs < 2) {
    decided.reason = "one seed";
  } else {
    decided.verdict = verdict_of_test(turned(evidence, claim.rule, margin), margin);
    return decided;
  }
  decided.verdict = ClaimVerdict::undecided;
  return decided;
}

std::vector<DecidedClaim> decide_all(std::span<const ClaimFile> files,
                                     const std::filesystem::path& root) {
  std::vector<DecidedClaim> out;
  for (const ClaimFile& file : files)
    for (const Claim& claim : file.claims) out.push_back(decide(file, claim, root));
  return out;
}

std::vector<DecidedClaim> claims_named(std::span<const DecidedClaim> claims,
                                       const std::string& name) {
  std::vector<DecidedClaim> out;
  std::vector<std::string> ids;
  for (const DecidedClaim& claim : claims) {
    ids.push_back(claim.id());
    if (claim.id() == name || claim.id().starts_with(name + "/")) out.push_back(claim);
  }
  require<ConfigError>(!out.empty(), "reproduce",
                       "expected a claim; got '{}'{}; `fovea reproduce` lists them", name,
                       did_you_mean(name, ids));
  return out;
}

std::string effect_text(const DecidedClaim& decided) {
  if (decided.claim.rule == ClaimRule::tested && decided.verdict == ClaimVerdict::reproduced)
    return "test " + decided.claim.measure.variant;
  if (!decided.evidence) return "";
  const Evidence& evidence = *decided.evidence;
  const EvidenceQuery& measure = decided.claim.measure;
  const std::string unit = measure.unit.empty() ? "" : " " + measure.unit;
  if (evidence.is_benchmark()) {
    return fmt::format("{:.3g}{} ({:.3g} to {:.3g}, quartiles)", evidence.test.mean + measure.level,
                       unit, evidence.quartiles.low + measure.level,
                       evidence.quartiles.high + measure.level);
  }
  const PairedTest& test = evidence.test;
  std::string out = fmt::format("{:+.4f}{}", test.mean, unit);
  if (std::isfinite(test.interval.low)) {
    out += fmt::format(" ({:+.4f} to {:+.4f}, {} {}, p {})", test.interval.low, test.interval.high,
                       test.pairs, evidence.pairs_are, p_text(evidence.corrected_p()));
  }
  return out;
}

}  // namespace fovea
