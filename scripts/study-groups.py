#!/usr/bin/env python3
"""Are the groups of Focus word classes? How pure is the purest group of each class on texts that did not choose it.

    fovea inspect MODEL --adapter ADAPTER --text-file TEXT --tokens 2048 --layers 0 --heads 0 --hard --out TEXT   # each text
    scripts/study-groups.py FIRST/groups.json OTHER/groups.json ...

For each class the group with the largest share of it in FIRST is chosen, over all layers, among those that hold at least 4 %
of its tokens. Printed is JSON: the share of the class in that group in each other text (docs/findings/focus-groups.md).
A token counts by its first choice of a group. The last model of a file counts.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import json
import pathlib
import re
import sys

SMALLEST = 0.04
WORDS = {
    "determiners": "the a an this that these those my his her its our their your no every each any some",
    "prepositions": "to of in for with on at by from into upon over under between through about against among without within "
    "toward towards",
    "connectives": "and or but nor yet so who which whom whose that if when while because although though as than whether "
    "where since until",
    "verbs and pronouns": "have has had is are was were be been being am do does did will would shall should can could may "
    "might must i you he she it we they me him them us",
}
CLASS_OF = {word: name for name in reversed(WORDS) for word in WORDS[name].split()}


def class_of(token: str) -> str:
    word = token.strip().lower()
    if not word:
        return "space"
    return CLASS_OF.get(word, "other words") if re.search(r"\w", word) else "punctuation"


def purities(path: pathlib.Path) -> dict:
    """(layer, group) -> share of all tokens, and of each class in the group."""
    model = json.loads(path.read_text())["models"][-1]
    classes = [class_of(token) for token in model["tokens"]]
    out = {}
    for layer in model["layers"]:
        members: dict = {}
        for name, group in zip(classes, layer["first_choices"]):
            members.setdefault(group, []).append(name)
        for group, names in members.items():
            shares = {name: names.count(name) / len(names) for name in set(names)}
            out[layer["layer"], group] = (len(names) / len(classes), shares)
    return out


def main() -> int:
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    first, *others = [purities(pathlib.Path(name)) for name in sys.argv[1:]]
    result = {}
    for name in ["punctuation", *WORDS]:
        large = [place for place, (share, _) in first.items() if share >= SMALLEST]
        place = max(large, key=lambda p: (first[p][1].get(name, 0.0), -p[0]))
        found = [text.get(place, (0.0, {})) for text in others]
        result[name] = {
            "layer": place[0],
            "group": place[1],
            "values": [round(shares.get(name, 0.0), 4) for _, shares in found],
            "share_of_tokens": [round(share, 4) for share, _ in found],
        }
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
