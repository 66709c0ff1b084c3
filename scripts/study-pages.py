#!/usr/bin/env python3
"""Tables of the studies in docs/findings, made from their result files.

    scripts/study-pages.py --keep runs/NAME/compare.json   keeps a comparison as docs/findings/results/NAME.json
    scripts/study-pages.py                                 writes the tables (make study-pages)
    scripts/study-pages.py --check                         says which page differs from its result files; exit code 1

A page says where a table stands: everything between the lines

    <!-- study NAME -->
    <!-- end of study -->

is written anew from results/NAME.json. A kept file is compare.json without samples, maps and memory, and with the last
point alone of each curve: what a claim needs (fovea/report/claim_evidence.h).

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import json
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs/findings"
RESULTS = PAGES / "results"
STUDY = re.compile(r"(<!-- study ([\w.-]+) -->\n).*?(<!-- end of study -->)", re.DOTALL)
LAST_POINT = ("curve", "validation_curve", "temperature")
RUN_KEYS = ("seed", "validation_bits_per_byte", "tokens", "failure", "tasks", *LAST_POINT)
WORDS = {"inside_spread": "inside the spread", "as_good": "as good", "one_seed": "one seed", "reference": ""}


def rounded(value: object) -> object:
    """Seven digits, of which a table shows four."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {key: rounded(v) for key, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, list) else value


def kept_run(run: dict) -> dict:
    out = {key: run[key][-1:] if key in LAST_POINT else run[key] for key in RUN_KEYS if run.get(key) not in (None, [], "")}
    for point in out.get("curve", []):
        point.pop("seconds", None)
    return out


def keep(path: pathlib.Path) -> None:
    whole = json.loads(path.read_text())
    name = re.search(r"recipes/(?:\S*/)?([\w.-]+)\.yaml", whole["command"]).group(1)
    whole["command"] = re.sub(r"compare\.earlier=\S+", "compare.earlier=[EARLIER.json]", whole["command"])
    for variant in whole["variants"]:
        for key in ("sample", "attention_maps", "family"):
            variant.pop(key, None)
        for key in ("peak_memory_bytes", "perplexity"):
            variant["summary"].pop(key, None)
        variant["runs"] = [kept_run(run) for run in variant["runs"]]
    for key in ("scaling", "verdict_rule"):
        whole.pop(key, None)
    for machine in [whole["machine"], *(origin["machine"] for origin in whole.get("origins", []))]:
        machine.pop("memory_bytes", None)
    text = json.dumps(rounded(whole), indent=1, ensure_ascii=False)
    text = re.sub(r"\n\s{5,}", " ", text)  # a run is a line
    (RESULTS / f"{name}.json").write_text(text + "\n")
    print(f"docs/findings/results/{name}.json: {len(text)} bytes")


def p_text(p: object) -> str:
    if p is None:
        return ""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def interval_text(summary: dict) -> str:
    low, high = (summary["difference_interval"][end] for end in ("low", "high"))
    return f"{summary['difference']:+.4f} ({low:+.4f} to {high:+.4f})" if low is not None else ""


def made_by(part: dict) -> str:
    """The machine and the program of a study, or of its runs from elsewhere."""
    return f"{part['machine']['cpu']} ({part['machine']['isa']}), program {part['code_version'].split('+')[-1]}"


def table(name: str) -> str:
    study = json.loads((RESULTS / f"{name}.json").read_text())
    variants = study["variants"]
    chosen = {t["variant"]: t["value"] for t in study.get("tuning", []) if t["chosen"]}
    tried = list(dict.fromkeys(t["value"] for t in study.get("tuning", [])))
    first = variants[0]
    seeds = len(first["runs"])
    lines = [
        f"{first['parameters'] / 1e6:.2f} million parameters, {study['budget_amount'] / 1e6:.2f} million tokens a run, "
        f"{seeds} seeds, {study['dtype']}; {made_by(study)}.",
    ]
    for origin in study.get("origins", []):
        some = origin["variants"] if len(origin["variants"]) < len(variants) else []
        of = " of " + ", ".join(f"`{name}`" for name in some) if some else ""
        lines[0] += f" Seeds {', '.join(map(str, origin['seeds']))}{of}: {made_by(origin)}."
    if tried:
        lines[0] += (
            f" Each variant has its best of the values {', '.join(tried)} of `{study['tuned_key']}`, tried with seed "
            f"{study['tuning_seed']}, which does not count."
        )
    margin = study.get("equivalence_margin", 0)
    if margin:
        lines[0] += f" Differences within {margin:g} bits per byte do not matter."
    lines = textwrap.wrap(lines[0], 100)
    lines += ["", f"| variant |{' value |' if tried else ''} bits per byte | difference to {study['reference']} (95 %) | p (Holm) | verdict |"]
    lines.append(f"|---|{'---|' if tried else ''}---|---|---|---|")
    lines += [f"| {b['name'].replace('-', ', ')} |{' |' if tried else ''} {b['bits_per_byte']:.4f} | | | |" for b in study["baselines"]]
    for v in variants:
        s, bits = v["summary"], v["summary"]["bits_per_byte"]
        if v["name"] in chosen and chosen[v["name"]] in (tried[0], tried[-1]):
            chosen[v["name"]] += " (edge)"
        spread = f" ± {bits['standard_deviation']:.4f}" if bits["standard_deviation"] is not None else ""
        cells = [f"`{v['name']}`: {v['description']}" if v["description"] else f"`{v['name']}`"]
        cells += [chosen.get(v["name"], "")] if tried else []
        cells += [f"{bits['mean']:.4f}{spread}"]
        cells += ["", "", ""] if s["verdict"] == "reference" else [interval_text(s), p_text(s["corrected_p"]), WORDS.get(s["verdict"], s["verdict"])]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    if "--keep" in sys.argv:
        for path in sys.argv[sys.argv.index("--keep") + 1 :]:
            keep(pathlib.Path(path))
        return 0
    stale = []
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text()
        made = STUDY.sub(lambda m: m.group(1) + "\n" + table(m.group(2)) + "\n" + m.group(3), text)
        if made == text:
            continue
        stale.append(page.relative_to(ROOT))
        if "--check" not in sys.argv:
            page.write_text(made)
    for page in stale:
        print(f"{page}: {'differs from its result files; run make study-pages' if '--check' in sys.argv else 'written'}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
