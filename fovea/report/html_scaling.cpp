// The report's section on scaling: a chart for each axis, what each family needs, and the fits.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>

#include "fovea/report/format.h"
#include "fovea/report/html_parts.h"
#include "fovea/report/scaling.h"

namespace fovea {
namespace {

std::string share_text(const IsoLoss& iso) {
  if (iso.bound == IsoLoss::Bound::none) return spread_text(iso.ratio, 3);
  return fmt::format("{} {}", iso.bound == IsoLoss::Bound::at_most ? "at most" : "more than",
                     fixed_text(iso.ratio.mean, 3));
}

NumberTable points_table(const ScalingStudy& study, const std::string& axis) {
  NumberTable table{{"family", axis, "bits per byte"}, {}};
  for (const ScalingCurve& curve : study.curves) {
    const Band band = combine(0, [&] {
      std::vector<Line> lines;
      for (const ScalingLine& seed : curve.seeds) lines.push_back(seed.line);
      return lines;
    }());
    for (size_t i = 0; i < band.x.size(); ++i)
      table.rows.push_back({curve.family, count_text(band.x[i]), fixed_text(band.mean[i], 4)});
  }
  return table;
}

std::string study_html(const CompareResult& result, const ScalingStudy& study, ChartPress& press) {
  const std::string axis(enum_names(study.axis)[static_cast<size_t>(study.axis)]);
  std::string sentences;
  for (const std::string& sentence : scaling_sentences(study))
    sentences += fmt::format("<li>{}</li>", escape_html(sentence));
  std::string extra = sentences.empty() ? "" : "<ul class=\"note\">" + sentences + "</ul>\n";
  if (study.within_runs) {  // the curves themselves stand in "While training"
    return extra +
           "<p class=\"note\">From the validation curves of single runs: the middle of a run "
           "stands "
           "worse than a run whose schedule ends there. A sweep over train.steps is the fair "
           "form.</p>\n";
  }
  NumberTable shares{{"family", "at " + axis, "share needed", "seeds"}, {}};
  for (const IsoLoss& iso : study.iso_loss) {
    shares.rows.push_back(
        {iso.family, count_text(iso.x), share_text(iso), fmt::format("{}", iso.seeds)});
  }
  if (!shares.rows.empty()) extra += number_table_html(shares);
  NumberTable fits{{"family", "loss falls as " + axis + " to the power"}, {}};
  for (const ScalingCurve& curve : study.curves) {
    if (!std::isfinite(curve.fit.exponent)) continue;
    fits.rows.push_back({curve.family, fmt::format("{:.3f} ± {:.3f}", -curve.fit.exponent,
                                                   curve.fit.exponent_error)});
  }
  if (!fits.rows.empty()) extra += number_table_html(fits);
  return press.figure_html(
      {.title = study.axis == ScalingAxis::parameters ? "With more parameters" : "With more tokens",
       .subtitle = "Validation bits per byte; axis of " + axis +
                   " logarithmic. Line: mean over seeds; shade: lowest to highest.",
       .chart = [&](ChartSize size) { return scaling_chart(result, study, size); },
       .numbers = points_table(study, axis),
       .extra = extra,
       .spans = true});
}

}  // namespace

std::string scaling_section(const CompareResult& result, ChartPress& press) {
  std::string notes, figures;
  for (const ScalingStudy& study : scaling_studies(result))
    (study.within_runs ? notes : figures) += study_html(result, study, press);
  if (notes.empty() && figures.empty()) return "";
  if (!figures.empty()) figures = "<div class=\"grid\">\n" + figures + "</div>";
  return "<section><h2>Scaling</h2>\n" + notes + figures + "</section>\n";
}

}  // namespace fovea
