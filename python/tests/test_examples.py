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

def small_checkpoint(folder):
    """A random Llama and a tokenizer of its own, for machines without SmolLM2."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.train([str(Path(torch.__file__).parent / "optim/adam.py")], trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<eos>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>").save_pretrained(folder)
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=made.get_vocab_size(), hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, head_dim=8, max_position_embeddings=512, eos_token_id=0, bos_token_id=None,
        tie_word_embeddings=True)).save_pretrained(folder)
    return folder


@needs_program
def test_the_notebook_runs_from_the_first_cell_to_the_last(tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel"), pytest.importorskip("matplotlib")
    smollm = Path(os.environ.get("FOVEA_SMOLLM", "none"))
    base = smollm if (smollm / "config.json").is_file() else small_checkpoint(tmp_path / "base")
    monkeypatch.setenv("FOVEA_SMOLLM", str(base))
    monkeypatch.setenv("FOVEA_NOTEBOOK_STEPS", "3")
    monkeypatch.setenv("PATH", str(PROGRAM.parent), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(Path(fovea.__file__).parents[1]))
    book = nbformat.read(ROOT / "examples/retrofit.ipynb", as_version=4)
    kept = [output for cell in book.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in kept) >= 4, "the notebook is kept with its pictures"
    nbclient.NotebookClient(book, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert (tmp_path / "trained/adapter_model.safetensors").is_file()
