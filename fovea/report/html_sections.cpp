// Sections of text and tables: results, samples, how it was measured.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>

#include "fovea/report/format.h"
#include "fovea/report/html_parts.h"

namespace fovea {
namespace {

std::string cell(std::string_view label, const std::string& text) {
  return fmt::format("<td data-label=\"{}\">{}</td>", label, escape_html(text));
}

std::string_view verdict_class(Verdict verdict) {
  switch (verdict) {
    case Verdict::better:
      return "good";
    case Verdict::worse:
      return "bad";
    case Verdict::reference:
    case Verdict::equivalent:
      return "ref";
    default:
      return "open";
  }
}

std::string_view verdict_sign(Verdict verdict) {
  switch (verdict) {
    case Verdict::better:
      return "✓ ";
    case Verdict::worse:
      return "✗ ";
    case Verdict::equivalent:
      return "= ";
    case Verdict::inside_spread:
      return "≈ ";
    default:
      return "";
  }
}

/// Beneath the verdict: "p 0.012, 7 seeds needed".
std::string test_html(const VariantSummary& summary) {
  if (!std::isfinite(summary.corrected_p)) return "";
  const std::string seeds =
      summary.pairs_needed ? fmt::format(", {} seeds needed", pairs_needed_text(summary)) : "";
  const std::string equal = summary.verdict == Verdict::equivalent
                                ? ", of equivalence " + p_text(summary.equivalence_p)
                                : "";
  return fmt::format("<small>p {}{}</small>", escape_html(p_text(summary.corrected_p) + equal),
                     seeds);
}

std::string variant_row(const CompareResult& result, size_t index) {
  const CompareVariant& variant = result.variants[index];
  const VariantSummary& summary = variant.summary;
  const double memory =
      summary.finished_runs > 0 ? static_cast<double>(summary.peak_memory_bytes) : kNotANumber;
  std::string out = fmt::format("<tr><th scope=\"row\">{}<span class=\"name\">{}</span>",
                                swatch_html(result, index), escape_html(variant.name));
  if (!variant.description.empty())
    out += fmt::format("<small>{}</small>", escape_html(variant.description));
  out += "</th>" + cell("bits per byte", spread_text(summary.bits_per_byte, 3));
  out += fmt::format("<td data-label=\"difference\">{}<small>{}</small></td>",
                     difference_text(summary, 4),
                     std::isfinite(summary.p) ? interval_text(summary, 4) : "");
  out += fmt::format("<td data-label=\"verdict\"><span class=\"pill {}\">{}{}</span>{}</td>",
                     verdict_class(summary.verdict), verdict_sign(summary.verdict),
                     verdict_text(summary.verdict), test_html(summary));
  out += cell("perplexity", spread_text(summary.perplexity, 2));
  out += cell("tokens/s", count_text(summary.tokens_per_second));
  out += cell("peak memory", bytes_text(memory));
  out += cell("parameters", count_text(static_cast<double>(variant.parameters)));
  return out + "</tr>\n";
}

std::string definition(std::string_view term, const std::string& text) {
  if (text.empty()) return "";
  return fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", term, escape_html(text));
}

/// Non-empty parts with a separator.
std::string join(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) {
    if (!part.empty()) out += (out.empty() ? "" : " · ") + part;
  }
  return out;
}

std::string config_table(const CompareResult& result) {
  NumberTable table;
  table.columns = {"key"};
  for (const CompareVariant& variant : result.variants) {
    table.columns.push_back(variant.name);
    for (const auto& [key, value] : variant.config) {
      bool known = false;
      for (const auto& row : table.rows) known = known || row.front() == key;
      if (!known) table.rows.push_back({key});
    }
  }
  for (auto& row : table.rows) {
    for (const CompareVariant& variant : result.variants) {
      row.emplace_back("–");
      for (const auto& [key, value] : variant.config) {
        if (key == row.front()) row.back() = value;
      }
    }
  }
  if (table.rows.empty()) return "";
  return "<h3>What sets the variants apart</h3>\n" + number_table_html(table);
}

std::string runs_table(const CompareResult& result) {
  NumberTable table{{"run", "bits per byte", "perplexity", "tokens", "time", "tokens/s",
                     "peak memory", "attention path"},
                    {}};
  for (const CompareVariant& variant : result.variants) {
    for (const CompareRun& run : variant.runs) {
      table.rows.push_back(
          {fmt::format("{}, seed {}", variant.name, run.seed),
           run.failure.empty() ? fixed_text(run.validation_bits_per_byte, 4) : run.failure,
           fixed_text(run.validation_perplexity, 3), count_text(static_cast<double>(run.tokens)),
           duration_text(run.seconds), count_text(run.tokens_per_second),
           bytes_text(static_cast<double>(run.peak_memory_bytes)), run.attention_path});
    }
  }
  if (table.rows.empty()) return "";
  return "<h3>Every run</h3>\n" + number_table_html(table);
}

constexpr std::string_view kResultsHead = R"html(<section><h2>Results</h2>
<table class="results"><thead><tr>
<th scope="col">variant</th><th scope="col">bits per byte</th><th scope="col">difference</th>
<th scope="col">verdict</th><th scope="col">perplexity</th><th scope="col">tokens/s</th>
<th scope="col">peak memory</th><th scope="col">parameters</th>
</tr></thead>
<tbody>
)html";

constexpr std::string_view kBaselineRow = R"html(<tr class="baseline">
<th scope="row"><span class="swatch" style="--c:var(--chart-baseline)"></span><span class="name">{}</span></th>
<td data-label="bits per byte">{}</td><td></td>
<td data-label="verdict"><span class="pill ref">baseline</span>{}</td><td></td><td></td><td></td><td></td></tr>
)html";

constexpr std::string_view kSamplesHead = R"html(<section><h2>What they write</h2>
<p class="note">One continuation of the same prompt (bold) by each variant. A sample shows that training worked; it decides nothing.</p>
<div class="grid">
)html";

}  // namespace

std::string swatch_html(const CompareResult& result, size_t variant) {
  return fmt::format("<span class=\"swatch\" style=\"--c:var(--series-{})\"></span>",
                     series_of(result, variant));
}

std::string number_table_html(const NumberTable& table) {
  constexpr int64_t kLongCell = 32;  // may be broken anywhere; the others stay on one line
  const auto cell_html = [](std::string_view tag, std::string_view scope, const std::string& text) {
    const std::string_view kind = display_width(text) > kLongCell ? " class=\"long\"" : "";
    return fmt::format("<{0}{1}{2}>{3}</{0}>", tag, scope, kind, escape_html(text));
  };
  std::string out = "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Table\">\n";
  out += "<table class=\"numbers\"><thead><tr>";
  for (const std::string& column : table.columns) out += cell_html("th", " scope=\"col\"", column);
  out += "</tr></thead><tbody>\n";
  for (const auto& row : table.rows) {
    out += "<tr>";
    for (size_t i = 0; i < row.size(); ++i) {
      out += i == 0 ? cell_html("th", " scope=\"row\"", row[i]) : cell_html("td", "", row[i]);
    }
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

std::string results_section(const CompareResult& result) {
  std::string out(kResultsHead);
  for (size_t i = 0; i < result.variants.size(); ++i) out += variant_row(result, i);
  for (const CompareBaseline& baseline : result.baselines) {
    const std::string text = baseline.text_bytes > 0
                                 ? fmt::format("<small>fitted on {}</small>",
                                               bytes_text(static_cast<double>(baseline.text_bytes)))
                                 : "";
    out += fmt::format(kBaselineRow, escape_html(baseline.name),
                       fixed_text(baseline.bits_per_byte, 3), text);
  }
  return out + fmt::format(
                   "</tbody></table>\n<p class=\"note\">Validation text; lower is better. "
                   "{}</p>\n</section>\n",
                   escape_html(verdict_rule(result.equivalence_margin)));
}

std::string tasks_section(const CompareResult& result) {
  NumberTable table{task_columns(), {}};
  for (const TaskRow& row : task_rows(result)) table.rows.push_back(task_cells(row));
  if (table.rows.empty()) return "";
  return "<section><h2>Tasks</h2>\n<p class=\"note\">Mean over the seeds; the difference to the "
         "reference is paired by seed, its p corrected over the variants on that task.</p>\n" +
         number_table_html(table) + "</section>\n";
}

std::string samples_section(const CompareResult& result) {
  std::string cards;
  for (size_t i = 0; i < result.variants.size(); ++i) {
    const CompareVariant& variant = result.variants[i];
    if (variant.sample.prompt.empty() && variant.sample.text.empty()) continue;
    cards += fmt::format(
        "<article class=\"card sample\"><h3>{}{}</h3><pre "
        "tabindex=\"0\"><b>{}</b>{}</pre></article>\n",
        swatch_html(result, i), escape_html(variant.name), escape_html(variant.sample.prompt),
        escape_html(variant.sample.text));
  }
  if (cards.empty()) return "";
  return std::string(kSamplesHead) + cards + "</div></section>\n";
}

std::string measured_section(const CompareResult& result) {
  const MachineInfo& machine = result.machine;
  const DataInfo& data = result.data;
  std::string sources;
  for (const std::string& source : data.sources) sources += (sources.empty() ? "" : ", ") + source;
  std::string out = "<section><h2>How this was measured</h2>\n<dl class=\"facts\">\n";
  out += definition("Budget", budget_text(result));
  out += definition("Data", join({sources, bytes_text(static_cast<double>(data.bytes)),
                                  fmt::format("{} documents", data.documents)}));
  out += definition("Validation", bytes_text(static_cast<double>(data.validation_bytes)) +
                                      " that no run trained on");
  out += definition("Data fingerprint", data.fingerprint);
  out += definition("Machine",
                    join({machine.cpu, fmt::format("{} cores", machine.cores), machine.isa,
                          bytes_text(static_cast<double>(machine.memory_bytes)) + " memory"}));
  out += definition("Runs from elsewhere", origin_sentence(result));
  out += definition("Device", join({machine.device, result.dtype}));
  out += definition("Side by side", side_by_side_sentence(result));
  out +=
      definition("Code", join({"fovea " + result.code_version, "torch " + result.torch_version}));
  out += definition("Made", result.created);
  out += definition("Command", result.command);
  out += "</dl>\n" + config_table(result) + runs_table(result);
  return out + "</section>\n";
}

}  // namespace fovea
