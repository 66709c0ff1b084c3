#!/usr/bin/env python3
"""Writes statistics.json: distributions, tests and sample sizes by SciPy and statsmodels.

    python3 tests/golden/make_statistics_cases.py      needs the packages scipy and statsmodels

Run by hand; the tests only read the file.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import json
import pathlib
import warnings

import numpy
import scipy
import statsmodels
from scipy import special, stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower


def distributions() -> dict:
    freedoms = [1, 2, 3, 4, 5.5, 9, 30, 199, 9999]
    return {
        "incomplete_beta": [[a, b, x, float(special.betainc(a, b, x))] for a in (0.5, 1, 2.5, 40, 5000)
                            for b in (0.5, 3, 70) for x in (0.0, 1e-9, 0.02, 0.3, 0.5, 0.77, 0.999, 1.0)],
        "student_t_cdf": [[t, f, float(stats.t.cdf(t, f))] for f in freedoms
                          for t in (-60.0, -4.303, -1.0, -1e-6, 0.0, 0.2, 2.0, 12.7, 1e5)],
        "student_t_two_sided": [[t, f, float(2 * stats.t.sf(t, f))] for f in freedoms for t in (0.5, 3.0, 20.0, 300.0)],
        "student_t_quantile": [[p, f, float(stats.t.ppf(p, f))] for f in freedoms
                               for p in (1e-6, 0.01, 0.3, 0.5, 0.8, 0.975, 0.9975, 0.999999)],
        "noncentral_t_cdf": [[t, f, d, float(stats.nct.cdf(t, f, d))] for f in freedoms
                             for t in (0.3, 2.0, 4.303, 12.7) for d in (0.0, 0.5, 2.8, 9.0)],
    }


def t_tests(rng: numpy.random.Generator) -> list:
    samples = [[-0.1, -0.12], [-0.02, -0.05, -0.01], [0.003, -0.001, 0.002, 0.004, 0.0005],
               *([round(x, 6) for x in rng.normal(m, 1, n)] for m, n in ((0, 3), (0.8, 5), (0, 40), (-0.2, 400)))]
    cases = []
    for sample in samples:
        found = stats.ttest_1samp(sample, 0)
        interval = found.confidence_interval(0.95)
        cases.append({"differences": sample, "mean": float(numpy.mean(sample)), "error": float(stats.sem(sample)),
                      "t": float(found.statistic), "p": float(found.pvalue), "low": float(interval.low), "high": float(interval.high)})
    return cases


def holm(rng: numpy.random.Generator) -> list:
    families = [[0.04], [0.01, 0.04, 0.03, 0.005], [0.02, 0.02, 0.9], [0.0, 1.0], [round(x, 6) for x in rng.uniform(0, 0.2, 12)]]
    return [{"p": p, "corrected": multipletests(p, method="holm")[1].tolist()} for p in families]


def equivalences() -> list:
    """Two one-sided t-tests of paired differences, and Welch's test of two samples by their numbers."""
    cases = []
    for sample, margin in (([0.004, -0.006, 0.001], 0.02), ([0.012, 0.03, -0.006], 0.02), ([-0.02, -0.018, -0.023, -0.02, -0.021], 0.05),
                           ([0.1, 0.11, 0.09], 0.02)):
        below = float(stats.ttest_1samp(sample, margin, alternative="less").pvalue)
        above = float(stats.ttest_1samp(sample, -margin, alternative="greater").pvalue)
        interval = stats.ttest_1samp(sample, 0).confidence_interval(0.9)
        cases.append({"differences": sample, "margin": margin, "below": below, "above": above, "low": float(interval.low),
                      "high": float(interval.high)})
    return cases


def welch_cases() -> list:
    cases = []
    for first, second in (((2.416, 0.044, 3), (2.267, 0.02, 3)), ((2.654, 0.032, 3), (2.985, 0.111, 3)), ((1.0, 0.5, 5), (1.1, 0.1, 40))):
        found = stats.ttest_ind_from_stats(*first, *second, equal_var=False)
        cases.append({"first": first, "second": second, "t": float(found.statistic), "p": float(found.pvalue)})
    return cases


def mcnemar_cases() -> list:
    cases = []
    for first, second in [(0, 1), (0, 5), (3, 3), (4, 6), (1, 9), (25, 40), (300, 390), (2000, 2300)]:
        table = [[7, first], [second, 11]]
        # statsmodels lets the correction turn the sign where both counts are equal.
        corrected = 1.0 if first == second else float(mcnemar(table, exact=False, correction=True).pvalue)
        cases.append({"first": first, "second": second, "exact": float(mcnemar(table, exact=True).pvalue), "corrected": corrected})
    return cases


def powers() -> list:
    cases = []
    for effect in (0.05, 0.3, 0.8, 1.5, 3.0, 8.0):
        for level in (0.05, 0.05 / 4):
            chance = lambda n: float(TTestPower().power(effect, n, level))  # noqa: E731
            pairs = next(n for n in range(2, 100000) if chance(n) >= 0.8)
            cases.append({"effect": effect, "significance": level, "pairs": pairs, "power": chance(pairs), "power_at_3": chance(3)})
    return cases


def main() -> None:
    warnings.simplefilter("ignore")
    rng = numpy.random.default_rng(7)
    cases = {"made_by": f"scipy {scipy.__version__}, statsmodels {statsmodels.__version__}", **distributions(),
             "t_tests": t_tests(rng), "holm": holm(rng), "mcnemar": mcnemar_cases(), "power": powers(),
             "equivalence": equivalences(), "welch": welch_cases()}
    path = pathlib.Path(__file__).with_name("statistics.json")
    lines = []
    for key, value in cases.items():
        rows = ",\n".join(json.dumps(row) for row in value) if isinstance(value, list) else None
        lines.append(f"{json.dumps(key)}: " + (f"[\n{rows}\n]" if rows else json.dumps(value)))
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{path}: {sum(len(v) for v in cases.values() if isinstance(v, list))} cases")


if __name__ == "__main__":
    main()
