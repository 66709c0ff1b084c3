"""Runs of your own training loop as a `compare.json`, which `fovea compare FILE.json` judges and draws.

    results = fovea.comparison.Comparison("Mine and softmax", reference="softmax", text="book.txt", steps=200, tokens=204_800)
    results.add_run("softmax", seed=0, parameters=n, bits_per_byte=2.31, seconds=9.5)
    results.save("runs/mine/compare.json")

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
from __future__ import annotations

import datetime
import hashlib
import json
import math
import os
import platform
import resource
from pathlib import Path
from typing import Optional, Sequence, Union

import torch

from . import __version__


def _expect(holds: bool, text: str) -> None:
    if not holds:
        raise ValueError(f"[fovea.comparison] {text}")


def _number(x: Optional[float]) -> Optional[float]:
    """A number for JSON: null where it does not exist."""
    return None if x is None or not math.isfinite(x) else float(x)


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _machine() -> dict:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return {"cpu": _cpu(), "cores": os.cpu_count() or 1, "isa": torch.backends.cpu.get_cpu_capability(),
            "device": "cpu", "memory_bytes": memory}


class Comparison:
    """Results of several variants, each trained with several seeds, on one text under one budget.

    reference: the variant that others are judged against.
    text: the file that all learn from.
    steps, tokens: of each run.
    validation_bytes: how many bytes of the text are scored.

    Raises OSError where the text cannot be read.
    """

    def __init__(self, title: str, *, reference: str, text: Union[str, os.PathLike], steps: int, tokens: int,
                 validation_bytes: int = 0):
        _expect(steps > 0 and tokens > 0, f"expected steps and tokens above 0; got {steps} and {tokens}")
        content = Path(text).read_bytes()
        self._steps, self._variants = steps, {}
        self._head = {
            "schema": 1, "title": title, "budget": "tokens", "budget_amount": tokens,
            "created": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "dtype": "float32",
            "machine": _machine(), "code_version": f"fovea {__version__} (Python)", "torch_version": torch.__version__,
            "data": {"sources": [Path(text).name], "bytes": len(content), "documents": 1, "validation_bytes": validation_bytes,
                     "fingerprint": hashlib.sha256(content).hexdigest()[:16]}, "reference": reference}

    def add_run(self, variant: str, *, seed: int, parameters: int, bits_per_byte: float, seconds: float,
                loss: Optional[float] = None, losses: Sequence[tuple[int, float]] = (),
                validation: Sequence[tuple[int, float]] = (), description: str = "", failure: str = "") -> None:
        """One run. A seed means the same start and order of data in every variant: runs are compared seed by seed.

        bits_per_byte: of the validation text at the end; NaN where the run failed, with the reason in `failure`.
        seconds: of the training. loss: at the end, nats per token.
        losses: (step, training loss). validation: (step, bits per byte).
        The memory in the table is the largest of this process so far.
        Raises ValueError for a seed that the variant has.
        """
        runs = self._variants.setdefault(variant, {"name": variant, "description": description, "parameters": parameters,
                                                   "runs": []})["runs"]
        _expect(all(run["seed"] != seed for run in runs), f"expected one run a seed; got seed {seed} of '{variant}' twice")
        tokens, bits = self._head["budget_amount"], _number(bits_per_byte)
        _expect(bits is not None or bool(failure), f"expected bits_per_byte, or the reason in failure; got {bits_per_byte}")

        def points(key: str, values: Sequence[tuple[int, float]]) -> list[dict]:
            return [{"step": step, "tokens": step * tokens // self._steps, key: _number(x)} for step, x in values]

        runs.append({
            "seed": seed, "validation_bits_per_byte": bits, "validation_loss": _number(loss),
            "validation_perplexity": None if loss is None else _number(math.exp(min(loss, 700.0))),
            "tokens": tokens, "seconds": seconds, "tokens_per_second": _number(tokens / seconds if seconds > 0 else None),
            "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "attention_path": "",
            "failure": failure, "validation_curve": points("bits_per_byte", validation),
            "curve": [point | {"seconds": seconds * point["step"] / self._steps} for point in points("train_loss", losses)]})

    def save(self, path: Union[str, os.PathLike]) -> None:
        """Writes the file for `fovea compare`, in one step: what stood there is whole until then.

        Raises ValueError where the reference has no run.
        """
        reference = self._head["reference"]
        _expect(reference in self._variants, f"expected runs of the reference '{reference}'; got runs of "
                f"{', '.join(self._variants) or 'no variant'}")
        path = Path(path)
        _expect(path.suffix == ".json", f"expected a name that ends with .json; got {path.name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(path.name + ".new")
        new.write_text(json.dumps(self._head | {"variants": list(self._variants.values())}, allow_nan=False) + "\n")
        os.replace(new, path)
