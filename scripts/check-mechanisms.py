#!/usr/bin/env python3
"""Checks that a mechanism lives in its own files: which others of fovea/ name it in code.

A mechanism may be named in its unit (its files in attention/mechanisms, attention/specs, nn/mechanisms, its path and
kernels), in the lists where every mechanism stands, and where EXCEPTIONS has the file. Exceptions can only shrink: one
that is no longer needed fails.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import importlib
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
layers = importlib.import_module("check-layers")

# Words that name a mechanism, and its files beside those that begin with its name.
MECHANISMS = {
    "kv_shift": (r"kv_?shift|(key|value)_shift_g2", []),
    "multi_token": (r"multi_?token|kernel_(before|after)_hqk", ["convolution", "paths/mixing"]),
    "routing": (r"routing|(query|key)_routes_|key_nearness_", ["paths/listed"]),
    "longformer": (r"longformer|global_[qkv]_b", ["paths/parts"]),
    "streaming": (r"\.streaming\b|streaming_|StreamingSpec|start_q_bhtd", ["paths/parts"]),
    "sparq": (r"sparq", ["paths/selected"]),
    "magic_pig": (r"magic_?pig", ["paths/selected", "paths/sampled", "cache/hash_tables"]),
    "performer": (r"performer|features_md", ["paths/sums", "kernels/backend", "kernels/cpu/backend"]),
}
# Every mechanism stands in these: keys and tensors, the list, refusals, what learns, settings of a model.
LISTS = {"fovea/attention/spec.h", "fovea/attention/mechanisms/mechanisms.cpp", "fovea/attention/mechanisms/refusals.cpp",
         "fovea/nn/mechanisms/mechanisms.cpp", "fovea/nn/model_config.h"}
# (mechanism, file): to be removed, never added to.
EXCEPTIONS = {
    ("kv_shift", "fovea/attention/decode/token_step.cpp"),
    ("magic_pig", "fovea/attention/cache/selector_memory.cpp"),
    ("multi_token", "fovea/attention/paths/ops.cpp"),
    ("multi_token", "fovea/retrofit/kinds.cpp"),
    ("multi_token", "fovea/train/run_plan.cpp"),
    ("routing", "fovea/checkpoint/part_case.cpp"),
    ("streaming", "fovea/attention/decode/token_step.cpp"),
    ("streaming", "fovea/infer/text_writer.cpp"),
    ("streaming", "fovea/nn/fused_decoder.cpp"),
}


def in_unit(path: pathlib.Path, mechanism: str, files: list[str]) -> bool:
    stems = [mechanism, *files]
    return any(re.search(rf"/{re.escape(stem)}[a-z_0-9]*\.(h|cpp|cu|cuh)$", f"/{path}") for stem in stems)


def named_mechanisms(path: pathlib.Path) -> set[str]:
    code = "\n".join(layers.without_comments(path.read_text(encoding="utf-8")))
    return {name for name, (words, files) in MECHANISMS.items()
            if not in_unit(path, name, files) and re.search(words, code, re.I)}


def main() -> int:
    checked = [path for path in layers.sources() if path.parts[0] == "fovea" and path.suffix in (".h", ".cpp", ".cu", ".cuh")
               and path.as_posix() not in LISTS]
    found = {(name, path.as_posix()) for path in checked for name in named_mechanisms(path)}
    problems = [f"{path}: names {name}; give the mechanism a hook (attention/mechanism.h) and ask the list"
                for name, path in sorted(found - EXCEPTIONS)]
    problems += [f"scripts/check-mechanisms.py: ({name}, {path}) is no longer needed; remove it"
                 for name, path in sorted(EXCEPTIONS - found)]
    for problem in problems:
        print(f"[mechanisms] {problem}")
    print(f"[mechanisms] {len(MECHANISMS)} mechanisms, {len(EXCEPTIONS)} exceptions, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
