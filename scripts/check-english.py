#!/usr/bin/env python3
"""Headers that a stranger reads once: no sentence of a comment has more than 30 words, none begins with What, Of, Such or
"The same of".

    scripts/check-english.py [FILES...]      default: all headers of fovea/ and cli/

Sentences end at a full stop or question mark, or where the comment, or an item of a list ("- "), ends. Indented lines
(formulas, tables, diagrams) and lines of SPDX are none.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import pathlib
import re
import subprocess
import sys

MOST_WORDS = 30
BEGINNINGS = re.compile(r"^(What|Of|Such|The same of)\b(?!.*\?$)")
COMMENT = re.compile(r"^(?P<code>(?:[^\"/]|\"(?:\\.|[^\"])*\"|/(?!/))*?)//(?P<mark>[/!]?<?) ?(?P<text>.*)$")
END = re.compile(r"(?:(?<=[.?!])|(?<=[.?!][\"')]))(?<!\.\.)(?<!e\.g\.)(?<!i\.e\.)(?<!Eq\.)(?<!vs\.)\s+(?=[A-Za-z\"'(`0-9])")


def paragraphs(text: str):
    """(line, text) of comment lines that belong together: below each other in one column, with one kind of mark."""
    first, words, place = 0, [], None
    for number, line in enumerate(text.split("\n"), 1):
        comment = COMMENT.match(line)
        body = comment.group("text") if comment else ""
        # A formula or a picture stands deeper than prose; an empty line ends a paragraph.
        item = bool(words and words[0].startswith("- ") and body.startswith("  "))
        ends = not comment or body.strip() == "" or (body.startswith("  ") and not item) or "SPDX-" in body or "clang-format" in body
        here = None if ends else (len(comment.group("code")), comment.group("mark"))
        behind_code = bool(comment and comment.group("code").strip())
        if words and (here != place or behind_code or body.startswith("- ")):
            yield first, " ".join(words)
            words = []
        place = here
        if ends:
            continue
        if not words:
            first = number
        words.append(body.strip())
    if words:
        yield first, " ".join(words)


def problems(path: pathlib.Path):
    for line, paragraph in paragraphs(path.read_text(encoding="utf-8")):
        for sentence in END.split(paragraph):
            count = len([word for word in sentence.split() if re.search(r"\w", word)])
            if count > MOST_WORDS:
                yield f"{path}:{line}: a sentence of {count} words, {MOST_WORDS} at most: {sentence[:400]}"
            if begins := BEGINNINGS.match(sentence.strip()):
                yield f"{path}:{line}: a sentence that begins with '{begins.group(1)}': {sentence[:400]}"


def main() -> int:
    files = [pathlib.Path(name) for name in sys.argv[1:]]
    if not files:
        listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "fovea/*.h", "cli/*.h"],
                                check=True, capture_output=True, text=True).stdout
        files = [pathlib.Path(name) for name in listed.split("\0") if name and pathlib.Path(name).is_file()]
    found = [problem for path in files for problem in problems(path)]
    for problem in found:
        print(f"[english] {problem}")
    print(f"[english] {len(files)} headers, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
