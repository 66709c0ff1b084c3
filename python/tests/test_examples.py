# The examples that have results: a study of one's own attention, and the notebook.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fovea.comparison

ROOT = Path(__file__).parents[2]
PROGRAM = Path(os.environ.get("FOVEA_PROGRAM", ROOT / "build/bin/fovea"))
needs_program = pytest.mark.skipif(not PROGRAM.is_file(), reason="no program: make program")


@needs_program
def test_the_study_of_an_own_attention_is_judged_by_fovea_compare(tmp_path):
    done = subprocess.run([sys.executable, ROOT / "examples/own_attention.py", ROOT / "CONTRIBUTING.md", "--out", tmp_path,
                           "--steps", "20", "--seeds", "2", "--width", "32"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "compare.json").read_text())
    shown = subprocess.run([PROGRAM, "compare", tmp_path / "compare.json", "--json"], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    variants = {variant["name"]: variant for variant in json.loads(shown.stdout)["variants"]}
    assert list(variants) == ["softmax", "sigmoid", "multi-token"]
    assert variants["softmax"]["summary"]["verdict"] == "reference"
    for variant, given in zip(variants.values(), written["variants"]):
        bits = [run["validation_bits_per_byte"] for run in given["runs"]]
        assert variant["summary"]["bits_per_byte"]["mean"] == pytest.approx(sum(bits) / 2)
        assert variant["summary"]["pairs"] in (0, 2)
        assert max(bits) < given["runs"][0]["curve"][0]["train_loss"] / 0.6931 - 0.5  # it learned
    # The same start: Multi-Token kernels begin as the identity.
    first = [given["runs"][0]["curve"][0]["train_loss"] for given in written["variants"]]
    assert first[2] == pytest.approx(first[0], abs=1e-5) and abs(first[1] - first[0]) < 0.5
    page = (tmp_path / "compare.html").read_text()
    assert "An attention of one" in page and "SigmoidAttention of this file" in page


@needs_program
def test_a_run_that_failed_has_no_number_and_the_page_says_why(tmp_path):
    (tmp_path / "text.txt").write_text("a text")
    results = fovea.comparison.Comparison("Title", reference="a", text=tmp_path / "text.txt", steps=2, tokens=20)
    for name, bits in (("a", 2.0), ("b", float("nan"))):
        results.add_run(name, seed=0, parameters=3, bits_per_byte=bits, seconds=1.0, loss=1.0, losses=[(1, float("inf"))],
                        failure="" if name == "a" else "the loss diverged")
    with pytest.raises(ValueError, match="seed 0 of 'a' twice"):
        results.add_run("a", seed=0, parameters=3, bits_per_byte=2.0, seconds=1.0)
    with pytest.raises(ValueError, match="the reason in failure"):
        results.add_run("a", seed=1, parameters=3, bits_per_byte=float("nan"), seconds=1.0)
    results.save(tmp_path / "new" / "compare.json")
    done = subprocess.run([PROGRAM, "compare", tmp_path / "new/compare.json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "the loss diverged" in (tmp_path / "new/compare.html").read_text()
    with pytest.raises(ValueError, match="runs of the reference 'z'"):
        fovea.comparison.Comparison("Title", reference="z", text=tmp_path / "text.txt", steps=2, tokens=20).save("x.json")
