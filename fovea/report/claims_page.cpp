// docs/findings/claims.md, made of the claims and their verdicts.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>

#include <algorithm>

#include "fovea/report/claims.h"
#include "fovea/report/format.h"

namespace fovea {
namespace {

constexpr std::string_view kClaimsHead = R"md(# The papers' claims and what was measured here

Made by `fovea reproduce --markdown` (`make claims`) from `recipes/claims/` and the result files;
do not edit. `fovea reproduce` lists the same, `fovea reproduce ID` runs a claim's small twin and
prints the paper's numbers beside those of the run.

| verdict | rule |
|---|---|
| reproduced | p < 0.05 after Holm's correction, in the claimed direction. Claims of equality or no cost: equivalence tests (TOST) within the stated margin |
| refuted | p < 0.05 in the other direction; for equality a difference beyond the margin |
| bounded | not decided, but a gain of more than the margin is excluded (p < 0.05) |
| undecided | neither, one seed, or a flaw of the study, which is stated |
| not run | no result; the command stands in the second table |

**A verdict holds for the sizes of the column "measured on".** They are a thousandth of the papers'
and less. Seeds vary initialisation and data order: not the text, the size or the rate. Intervals
cover 95 % for one comparison; p is corrected over all comparisons of its study. Pairs are seeds
unless the cell names texts, windows or questions; "x 3 trainings" adds the spread of the trainings
to that of the questions. A row of a benchmark has quartiles of pairs instead of p. Older results
have three seeds and one learning rate for all variants; newer ones have five or eight seeds, and
each variant has its rate tuned.

)md";

/// A table cell: no bars, no line breaks.
std::string claim_cell(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  size_t at = 0;
  while ((at = text.find('|', at)) != std::string::npos) {
    text.replace(at, 1, "\\|");
    at += 2;
  }
  return text;
}

std::string counts_line(std::span<const DecidedClaim> claims) {
  std::vector<std::string> parts;
  for (const std::string_view name : enum_names(ClaimVerdict{})) {
    const auto count = std::ranges::count_if(
        claims, [&](const DecidedClaim& c) { return enum_name(c.verdict) == name; });
    parts.push_back(fmt::format("{} {}", count, name));
  }
  return fmt::format("{} claims: {}.\n\n", claims.size(), fmt::join(parts, ", "));
}

/// A path of the repository as a link from docs/findings.
std::string repository_link(const std::string& path) {
  if (path.empty()) return "";
  const size_t slash = path.rfind('/');
  return fmt::format("[{}](../../{})", slash == std::string::npos ? path : path.substr(slash + 1),
                     path);
}

std::string claim_remark(const DecidedClaim& decided) {
  std::string out;
  if (decided.verdict == ClaimVerdict::undecided && !decided.reason.empty()) out = decided.reason;
  if (!decided.claim.note.empty()) out += (out.empty() ? "" : "; ") + decided.claim.note;
  return out;
}

void add_verdicts(std::span<const DecidedClaim> claims, std::string& out) {
  out += "| claim | paper | here | measured on | verdict |\n|---|---|---|---|---|\n";
  for (const DecidedClaim& decided : claims) {
    const Claim& claim = decided.claim;
    if (decided.verdict == ClaimVerdict::not_run) continue;
    const std::string remarks = claim_remark(decided);
    out +=
        fmt::format("| `{}`, {}: {} | {} | {} | {} | **{}**{} |\n", decided.id(), claim.place,
                    claim_cell(claim.claim), claim_cell(claim.paper),
                    claim_cell(effect_text(decided)), claim_cell(claim.here),
                    enum_name(decided.verdict), remarks.empty() ? "" : ": " + claim_cell(remarks));
  }
  out += "\n";
}

/// A twin of several commands is too long for a cell: `fovea reproduce` runs them, `--show` prints
/// them.
std::string twin_cell(const DecidedClaim& decided) {
  const std::string& twin = decided.claim.command;
  if (twin.empty()) return "";
  const bool several = twin.find(" && ") != std::string::npos;
  return "`" + claim_cell(several ? "fovea reproduce " + decided.id() : twin) + "`";
}

void add_sources(std::span<const DecidedClaim> claims, std::string& out) {
  out += "| claim | small twin | result | at the paper's size |\n|---|---|---|---|\n";
  for (const DecidedClaim& decided : claims) {
    const Claim& claim = decided.claim;
    if (decided.verdict == ClaimVerdict::not_run) continue;
    out += fmt::format("| `{}` | {} | {} | {} |\n", decided.id(), twin_cell(decided),
                       repository_link(claim.result), repository_link(claim.paper_recipe));
  }
  out += "\n";
}

void add_not_run(std::span<const DecidedClaim> claims, std::string& out) {
  if (std::ranges::none_of(
          claims, [](const DecidedClaim& c) { return c.verdict == ClaimVerdict::not_run; }))
    return;
  out += "Not run:\n\n| claim | paper | small twin | at the paper's size |\n|---|---|---|---|\n";
  for (const DecidedClaim& decided : claims) {
    const Claim& claim = decided.claim;
    if (decided.verdict != ClaimVerdict::not_run) continue;
    const std::string twin = claim.command.empty()
                                 ? (claim.flaw.empty() ? "none yet" : claim_cell(claim.flaw))
                                 : twin_cell(decided);
    out += fmt::format("| `{}`, {}: {} | {} | {} | {} |\n", decided.id(), claim.place,
                       claim_cell(claim.claim), claim_cell(claim.paper), twin,
                       repository_link(claim.paper_recipe));
  }
  out += "\n";
}

}  // namespace

std::string claims_markdown(std::span<const ClaimFile> files,
                            std::span<const DecidedClaim> claims) {
  std::string out(kClaimsHead);
  out += counts_line(claims);
  for (const ClaimFile& file : files) {
    std::vector<DecidedClaim> own;
    for (const DecidedClaim& claim : claims)
      if (claim.seed == file.seed) own.push_back(claim);
    out += fmt::format("## {}\n\n", file.paper);
    if (std::ranges::any_of(
            own, [](const DecidedClaim& c) { return c.verdict != ClaimVerdict::not_run; })) {
      add_verdicts(own, out);
      add_sources(own, out);
    }
    add_not_run(own, out);
  }
  while (out.ends_with("\n\n")) out.pop_back();
  return out;
}

}  // namespace fovea
