// The look of the report. Colours stand once, as pairs of light and dark.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <string>

#include "fovea/base/error.h"
#include "fovea/report/html_parts.h"

namespace fovea {
namespace {

struct ThemeColor {
  std::string_view name, light, dark;
};

// Series colours follow Okabe and Ito (distinguishable in every common colour blindness), darkened
// or lightened until text in them has a contrast of 4.5 on its background. Series 0, the reference,
// is neutral.
constexpr ThemeColor kColors[] = {
    {"page", "#f6f5f1", "#0f1215"},          {"surface", "#ffffff", "#171b20"},
    {"text", "#1b1f24", "#e9ebee"},          {"muted", "#5d636b", "#9da5ae"},
    {"line", "#e3e0d9", "#2b3138"},          {"accent", "#0a62a9", "#6bb8f0"},
    {"good", "#00754f", "#46cf9d"},          {"good-tint", "#e2f4ec", "#12302a"},
    {"bad", "#b8450a", "#ff9a5c"},           {"bad-tint", "#fbeadf", "#3a2416"},
    {"open-tint", "#eeece6", "#262c33"},     {"chart-text", "#1b1f24", "#e9ebee"},
    {"chart-muted", "#5d636b", "#9da5ae"},   {"chart-grid", "#e9e6df", "#2a3037"},
    {"chart-surface", "#ffffff", "#171b20"}, {"chart-baseline", "#b3aea3", "#5c646d"},
    {"series-0", "#57606a", "#b4bcc5"},      {"series-1", "#0067b1", "#56b4e9"},
    {"series-2", "#c44e06", "#ff9248"},      {"series-3", "#007a5a", "#36c99c"},
    {"series-4", "#a5437b", "#e58fc3"},      {"series-5", "#8a6100", "#eec246"},
    {"series-6", "#147488", "#5fd0e0"},      {"series-7", "#7c4a26", "#cfa07c"},
    {"layer-0", "#cf7a00", "#ffd166"},       {"layer-1", "#c95f2b", "#ffae5c"},
    {"layer-2", "#bd4557", "#ff8b67"},       {"layer-3", "#a3337b", "#f77290"},
    {"layer-4", "#822c95", "#df6fb8"},       {"layer-5", "#5d2c9e", "#b77fe0"},
    {"layer-6", "#3b2c9b", "#93a0f5"},       {"layer-7", "#17258b", "#7cc4ff"},
    {"ramp-0", "#ffffff", "#171b20"},        {"ramp-1", "#8fc1e6", "#2c6ea6"},
    {"ramp-2", "#06305e", "#f7e7b4"},
};

constexpr std::string_view kRules = R"css(
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--text); font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; font-variant-numeric: tabular-nums; }
main { max-width: 1180px; margin: 0 auto; padding: 0 20px 72px; }
h1, h2, h3, p, li, td, th, dd, figcaption { overflow-wrap: anywhere; }
h1 { font-size: clamp(28px, 4.4vw, 44px); line-height: 1.12; letter-spacing: -0.022em; margin: 10px 0 12px; text-wrap: balance; }
h2 { font-size: 23px; letter-spacing: -0.012em; margin: 0 0 14px; }
h3 { font-size: 16px; margin: 0; line-height: 1.35; }
section { margin-top: 56px; }
section > h3 { margin: 32px 0 10px; }
.top { padding-top: 34px; }
.top > :not(.kicker) { max-width: 900px; }
.kicker { display: flex; justify-content: space-between; align-items: center; color: var(--accent); font-weight: 650; font-size: 13px; letter-spacing: 0.05em; text-transform: uppercase; }
.lead { font-size: clamp(17px, 2vw, 20px); color: var(--muted); margin: 0 0 20px; }
.findings { list-style: none; padding: 0; margin: 0; display: grid; gap: 8px; }
.findings li { padding: 11px 16px; border-radius: 8px; border-left: 4px solid var(--line); background: var(--open-tint); }
.findings .good { background: var(--good-tint); border-color: var(--good); }
.findings .bad { background: var(--bad-tint); border-color: var(--bad); }
.findings .open { border-color: var(--muted); }
.findings .plain { background: none; border-color: var(--line); }
.note { color: var(--muted); font-size: 14px; max-width: 78ch; margin: 10px 0 18px; }
.notice { padding: 12px 16px; border-radius: 8px; background: var(--bad-tint); border-left: 4px solid var(--bad); }
.card { background: var(--surface); border: 1px solid var(--line); border-radius: 12px; padding: 18px; margin: 0; min-width: 0; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: 18px; align-items: start; }
button, select { font: inherit; color: inherit; background: var(--surface); border: 1px solid var(--line); border-radius: 8px; padding: 5px 11px; min-height: 36px; max-width: 100%; }
button { cursor: pointer; }
button:hover, select:hover { border-color: var(--muted); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
#theme { font-size: 13px; font-weight: 500; letter-spacing: 0; text-transform: none; color: var(--muted); }
.grouped { white-space: pre-wrap; overflow-wrap: anywhere; line-height: 2; }
.grouped span { border-bottom: 3px solid var(--c); background: color-mix(in srgb, var(--c) 22%, transparent); border-radius: 3px; }
.swatch { display: inline-block; flex: none; width: 11px; height: 11px; border-radius: 3px; background: var(--c); margin-right: 8px; }
.pill { display: inline-block; padding: 1px 10px; border-radius: 99px; font-size: 13px; font-weight: 600; white-space: nowrap; background: var(--open-tint); color: var(--muted); }
.pill.good { background: var(--good-tint); color: var(--good); }
.pill.bad { background: var(--bad-tint); color: var(--bad); }
.pill.ref { background: none; box-shadow: inset 0 0 0 1px var(--line); font-weight: 500; }
table { border-collapse: collapse; width: 100%; font-size: 14.5px; }
th { font-weight: 600; }
.results { background: var(--surface); border: 1px solid var(--line); border-radius: 12px; border-collapse: separate; border-spacing: 0; }
.results th, .results td { padding: 11px 12px; text-align: right; border-bottom: 1px solid var(--line); vertical-align: top; }
.results td { white-space: nowrap; }
.results tbody tr:last-child > * { border-bottom: 0; }
.results td:last-child, .results thead th:last-child { padding-right: 18px; }
.results th:first-child { text-align: left; padding-left: 18px; min-width: 190px; }
.results thead th { white-space: nowrap; font-size: 13px; font-weight: 500; color: var(--muted); vertical-align: bottom; }
.results small { display: block; font-weight: 400; color: var(--muted); font-size: 13px; margin-left: 19px; }
.results td small { margin-left: 0; }
.results .baseline th { font-weight: 400; }
.results .baseline { color: var(--muted); }
.legend { display: flex; flex-wrap: wrap; gap: 8px; margin-bottom: 16px; }
.chip { border-radius: 99px; font-size: 14px; text-align: left; overflow-wrap: anywhere; line-height: 1.3; }
.chip[aria-pressed="false"] { opacity: 0.5; text-decoration: line-through; }
figcaption p { margin: 3px 0 10px; font-size: 14px; color: var(--muted); }
figure svg { display: block; width: 100%; height: auto; font-family: inherit; }
figure .narrow, figure .full { display: none; }
figure .wide { max-width: 620px; }
.span { grid-column: 1 / -1; }
@media (min-width: 1100px) {
  .span .wide { display: none; }
  .span .full { display: block; }
}
.curve, .layer { stroke-linejoin: round; stroke-linecap: round; }
[data-variant] { transition: opacity 0.15s; }
.faded { opacity: 0.08; }
.layers { display: flex; flex-wrap: wrap; gap: 2px 16px; font-size: 13px; color: var(--muted); margin-top: 6px; }
details { margin-top: 12px; font-size: 14px; }
summary { cursor: pointer; color: var(--muted); padding: 4px 0; }
.scroll { overflow-x: auto; max-width: 100%; }
.numbers { font-size: 13.5px; width: auto; min-width: min(100%, 480px); }
.numbers th, .numbers td { padding: 6px 14px 6px 0; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; vertical-align: top; }
.numbers .long { white-space: normal; overflow-wrap: anywhere; min-width: 26ch; }
.numbers th:first-child { text-align: left; font-weight: 500; }
.numbers thead th { color: var(--muted); font-weight: 500; }
.controls { display: flex; flex-wrap: wrap; gap: 8px 18px; align-items: center; font-size: 14px; }
.check { display: inline-flex; gap: 6px; align-items: center; min-height: 36px; }
.ramp { display: inline-flex; gap: 7px; align-items: center; color: var(--muted); }
.ramp canvas { border: 1px solid var(--line); border-radius: 3px; }
.readout { margin: 12px 0; padding: 8px 12px; border-radius: 8px; background: var(--open-tint); font-size: 14.5px; min-height: 41px; }
.readout code { background: var(--surface); padding: 1px 5px; border-radius: 4px; white-space: pre-wrap; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 300px), 1fr)); gap: 24px; }
.panel { min-width: 0; }
.panel label { font-size: 14px; color: var(--muted); display: flex; gap: 8px; align-items: center; }
.panel select { flex: 1; min-width: 0; color: var(--text); font-weight: 600; text-overflow: ellipsis; }
.panel canvas { display: block; width: 100%; aspect-ratio: 1; margin-top: 12px; border: 1px solid var(--line); border-radius: 6px; cursor: crosshair; touch-action: pan-y; }
.figures { font-size: 13.5px; color: var(--muted); margin: 8px 0; }
.strip, pre, code { font-family: ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, monospace; }
.strip { font-size: 13px; line-height: 1.75; margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; }
.strip span { border-radius: 3px; cursor: pointer; padding: 1px 0; }
.strip .later { opacity: 0.35; }
.strip .query { box-shadow: 0 0 0 2px var(--bad); }
.sample pre { margin: 12px 0 0; font-size: 13px; line-height: 1.55; white-space: pre-wrap; overflow-wrap: anywhere; max-height: 340px; overflow-y: auto; }
.sample b { color: var(--accent); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr)); gap: 14px 32px; margin: 0; }
.facts dt { font-size: 13px; color: var(--muted); }
.facts dd { margin: 0; }
@media (max-width: 860px) {
  .results thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .results, .results tbody, .results tr, .results th { display: block; }
  .results tr { padding: 14px 16px; border-bottom: 1px solid var(--line); display: grid; grid-template-columns: 1fr 1fr; gap: 8px 16px; }
  .results tbody tr:last-child { border-bottom: 0; }
  .results th:first-child { grid-column: 1 / -1; padding: 0; border: 0; }
  .results td { border: 0; padding: 0; text-align: left; display: block; white-space: normal; }
  .results td:empty { display: none; }
  .results td::before { content: attr(data-label); display: block; font-size: 12.5px; color: var(--muted); }
}
@media (max-width: 560px) {
  main { padding: 0 14px 48px; }
  section { margin-top: 44px; }
  .card { padding: 14px; }
  figure .wide, .span .wide { display: none; }
  figure .narrow { display: block; }
}
@media print { button { display: none; } .card, tr { break-inside: avoid; } }
@media (prefers-reduced-motion: reduce) { * { transition: none !important; } }
)css";

std::string variables(bool dark) {
  std::string out;
  for (const ThemeColor& color : kColors)
    out += fmt::format(" --{}: {};", color.name, dark ? color.dark : color.light);
  return out + (dark ? " color-scheme: dark;" : " color-scheme: light;");
}

}  // namespace

std::string page_style() {
  const std::string dark = variables(true);
  return fmt::format(
             ":root {{{}}}\n@media (prefers-color-scheme: dark) {{ "
             ":root:not([data-theme=\"light\"]) {{{}}} }}\n"
             ":root[data-theme=\"dark\"] {{{}}}",
             variables(false), dark, dark) +
         std::string(kRules);
}

std::string standalone_svg(std::string_view svg) {
  constexpr std::string_view kOpen = "<svg ";
  require<InputError>(svg.starts_with(kOpen), "picture", "expected an SVG element");
  const size_t end = svg.find('>') + 1;
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" {}\n<style>svg {{{} background: var(--page); "
      "font-family: system-ui, sans-serif; }}\n@media (prefers-color-scheme: dark) {{ svg {{{}}} "
      "}}</style>{}",
      svg.substr(kOpen.size(), end - kOpen.size()), variables(false), variables(true),
      svg.substr(end));
}

}  // namespace fovea
