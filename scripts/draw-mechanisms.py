#!/usr/bin/env python3
"""Draws the pictures of docs/mechanisms/: small attention maps, computed from random logits by each page's formula.

    scripts/draw-mechanisms.py [--folder docs/images]

Rows are queries (downwards), columns are keys. Blue is a positive weight or logit, red a negative one.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import math
import pathlib
import random

from svg_picture import INK, SKIPPED, Picture

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOKENS, CELL, GAP = 14, 11, 46
SIDE = TOKENS * CELL
GROUPS = ["#4477aa", "#cc6677", "#ddaa33"]
NEAR = "#bbbbbb"
MEMBERS = [0, 0, 1, 1, 2, 1, 0, 2, 2, 0, 1, 2, 0, 1]

Map = list[list[float | None]]


def logits(seed: int, scale: float = 1.5) -> Map:
    draw = random.Random(seed)
    return [[draw.gauss(0, scale) if j <= i else None for j in range(TOKENS)] for i in range(TOKENS)]


def softmax(rows: Map, temperature=lambda i: 1.0) -> Map:
    result = []
    for i, row in enumerate(rows):
        powers = [None if s is None else math.exp(s / temperature(i)) for s in row]
        total = sum(p for p in powers if p is not None)
        result.append([None if p is None else p / total for p in powers])
    return result


def joined(maps: list[Map], weights: list[float]) -> Map:
    """The sum of maps, each times its weight."""
    return [[None if maps[0][i][j] is None else sum(w * m[i][j] for m, w in zip(maps, weights))
             for j in range(TOKENS)] for i in range(TOKENS)]


def panels(titles: list[tuple[str, str]], maps: list[Map], tops: list[float]) -> Picture:
    p = Picture(len(maps) * (SIDE + GAP) + 20, SIDE + 64)
    for n, ((title, words), rows, top) in enumerate(zip(titles, maps, tops)):
        x = 20 + n * (SIDE + GAP)
        p.text(x, 20, title, 13)
        p.text(x, 36, words, 9)
        p.heat(x, 48, rows, CELL, top)
    return p


def focal() -> Picture:
    s = logits(3)
    learned = lambda i: 1.6 - 1.3 * i / (TOKENS - 1)
    return panels([("t = 1", "standard attention"), ("t = 0.4", "the same logits, constant"),
                   ("tau_i", "a temperature for each row")],
                  [softmax(s), softmax(s, lambda i: 0.4), softmax(s, learned)], [1, 1, 1])


def multi_token() -> Picture:
    # Logits with one match of the older query and, beside it, one of the current query.
    s = [[0.15 * x if x is not None else None for x in row] for row in logits(5)]
    for i, j in ((8, 3), (9, 4), (11, 1), (12, 9)):
        s[i][j] = 2.4
    kernel = [[0.0, 0.9, 0.9], [0.0, 0.9, 0.9]]
    after: Map = [[None] * TOKENS for _ in range(TOKENS)]
    for i in range(TOKENS):
        for j in range(i + 1):
            total = 0.0
            for a in range(2):
                for b in range(3):
                    r, c = i + a - 1, j + b - 1
                    if r >= 0 and 0 <= c <= r:
                        total += kernel[a][b] * s[r][c]
            after[i][j] = total
    return panels([("logits", "two neighbours match at (9, 4)"), ("convolved", "2 queries x 3 keys"),
                   ("weights", "after the softmax")],
                  [s, after, softmax(after)], [3, 6, 1])


def talking_heads() -> Picture:
    first, second = logits(7), logits(8)
    return panels([("head 1", "its weights alone"), ("head 2", "its weights alone"),
                   ("head 1, mixed", "logits: 0.8 of its own, 0.6 of head 2")],
                  [softmax(first), softmax(second), softmax(joined([first, second], [0.8, 0.6]))], [1, 1, 1])


def differential() -> Picture:
    noise = logits(11, 1.0)
    draw = random.Random(12)
    first = [[x if x is None else x + draw.gauss(0, 0.3) for x in row] for row in noise]
    second = [[x if x is None else x + draw.gauss(0, 0.3) for x in row] for row in noise]
    for i, j in ((5, 2), (9, 2), (12, 6)):
        first[i][j] += 4.0
    a, b = softmax(first), softmax(second)
    return panels([("A1", "noise and three matches"), ("A2", "nearly the same noise"),
                   ("A1 - 0.8 A2", "what both have is gone")], [a, b, joined([a, b], [1, -0.8])], [1, 1, 0.8])


def pairs(p: Picture, x: float, title: str, words: str, colour) -> None:
    """A panel of pairs: `colour(i, j)` of each allowed pair, "" where it is gone."""
    p.text(x, 20, title, 13)
    p.text(x, 36, words, 9)
    p.box(x, 48, SIDE, SIDE, SKIPPED, "#cccccc")
    for i in range(TOKENS):
        for j in range(i + 1):
            fill = colour(i, j)
            p.box(x + j * CELL, 48 + i * CELL, CELL, CELL, fill or "white", "#dddddd")


def focus() -> Picture:
    p = Picture(3 * (SIDE + GAP) + 20, SIDE + 92)
    draw = random.Random(2)
    assigned = []
    for group in MEMBERS:
        scores = [math.exp(2.2 * (k == group) + draw.gauss(0, 0.6)) for k in range(3)]
        assigned.append([s / sum(scores) for s in scores])
    share = lambda i, j: sum(a * b for a, b in zip(assigned[i], assigned[j]))
    local = lambda i, j: i - j < 3 or j < 1
    agree: Map = [[None if j > i else share(i, j) for j in range(TOKENS)] for i in range(TOKENS)]
    p.text(20, 20, "a_ij = g_i.g_j", 13)
    p.text(20, 36, "how far two tokens agree", 9)
    p.heat(20, 48, agree, CELL, 1)
    pairs(p, 20 + SIDE + GAP, "training, soft gate", "distant pairs as far as they agree",
          lambda i, j: NEAR if local(i, j) else blend(share(i, j), GROUPS[0]))
    pairs(p, 20 + 2 * (SIDE + GAP), "inference, hard", "without a shared group a pair is gone",
          lambda i, j: NEAR if local(i, j) else GROUPS[MEMBERS[i]] if MEMBERS[i] == MEMBERS[j] else "")
    legend(p, SIDE + 68, [(NEAR, "near, or a sink"), (GROUPS[0], "group A"), (GROUPS[1], "group B"),
                          (GROUPS[2], "group C"), ("white", "gone")])
    return p


def routing() -> Picture:
    p = Picture(2 * (SIDE + GAP) + 20, SIDE + 92)
    keep = 3

    def routed(i: int, j: int) -> str:
        own = [n for n in range(i + 1) if MEMBERS[n] == MEMBERS[i]]
        return GROUPS[MEMBERS[i]] if j in own[-keep:] else ""

    given = {(0, 0), (1, 0), (1, 1), (2, 0), (2, 2), (3, 2), (3, 3)}
    pairs(p, 20, "routing", "the last 3 keys of a query's own cluster", routed)
    pairs(p, 20 + SIDE + GAP, "given blocks", "blocks of 4, pairs from a list",
          lambda i, j: GROUPS[0] if (i // 4, j // 4) in given else "")
    legend(p, SIDE + 68, [(GROUPS[0], "cluster A"), (GROUPS[1], "cluster B"), (GROUPS[2], "cluster C")])
    return p


def windows() -> Picture:
    p = Picture(3 * (SIDE + GAP) + 20, SIDE + 92)
    near = lambda keys: lambda i, j: i - j < keys
    first = lambda keys: lambda i, j: j < keys
    either = lambda a, b: lambda i, j: GROUPS[0] if a(i, j) else GROUPS[2] if b(i, j) else ""
    dilated = lambda i, j: (i - j) % 2 == 0 and i - j <= 6
    everywhere = lambda i, j: j < 1 or j == 5 or i == 5
    pairs(p, 20, "StreamingLLM", "start 2, recent 4", either(near(4), first(2)))
    pairs(p, 20 + SIDE + GAP, "Longformer", "w = 3, positions 0 and 5 global", either(near(4), everywhere))
    pairs(p, 20 + 2 * (SIDE + GAP), "Longformer, dilated", "every second key, w = 3", either(dilated, everywhere))
    legend(p, SIDE + 68, [(GROUPS[0], "window"), (GROUPS[2], "start or global"), ("white", "not seen")])
    return p


def sparq() -> Picture:
    p = Picture(2 * (SIDE + GAP) + 20, SIDE + 92)
    keep, recent = 4, 1
    true = softmax(logits(21, 2.0))
    draw = random.Random(22)
    guess = softmax([[x if x is None else 0.8 * math.log(x) + draw.gauss(0, 0.4) for x in row] for row in true])

    def chosen(i: int, j: int) -> str:
        forced = lambda n: n >= i - recent
        order = sorted(range(i + 1), key=lambda n: (not forced(n), -guess[i][n]))
        return "" if j not in order[:keep + 1] else NEAR if forced(j) else blend(0.25 + guess[i][j], GROUPS[0])

    p.text(20, 20, "all keys, few components", 13)
    p.text(20, 36, "what the query's largest components guess", 9)
    p.heat(20, 48, guess, CELL, 1)
    pairs(p, 20 + SIDE + GAP, "few keys, all components", "the best guesses and the recent ones", chosen)
    legend(p, SIDE + 68, [(GROUPS[0], "best guesses"), (NEAR, "recent"), ("white", "not read: the mean value")])
    return p


def kv_shift() -> Picture:
    # A query that matches one token: with shifted keys it finds the token behind that one.
    s = [[0.3 * x if x is not None else None for x in row] for row in logits(15)]
    for i, j in ((6, 2), (9, 4), (12, 8)):
        s[i][j] = 3.5
    shifted: Map = [[None if x is None else 0.2 * x + 0.8 * (row[j - 1] if j > 0 else 0.0) for j, x in enumerate(row)]
                    for row in s]
    return panels([("q.k", "three matches"), ("q.k'", "k' = 0.2 k + 0.8 of the key before"),
                   ("weights", "on the token behind the match")],
                  [s, shifted, softmax(shifted)], [3, 3, 1])


def magic_pig() -> Picture:
    draw = random.Random(41)
    width, bits, tables, start, recent = 4, 3, 6, 2, 2
    vector = lambda: [draw.gauss(0, 1) for _ in range(width)]
    k = [vector() for _ in range(TOKENS)]
    q = [[0.8 * x + 0.6 * draw.gauss(0, 1) for x in k[draw.randrange(i + 1)]] for i in range(TOKENS)]
    planes = [[vector() for _ in range(bits)] for _ in range(tables)]
    dot = lambda a, b: sum(x * y for x, y in zip(a, b))
    hashes = lambda x: [tuple(dot(w, x) > 0 for w in table) for table in planes]
    of_q, of_k = [hashes(x) for x in q], [hashes(x) for x in k]
    meetings = [[sum(a == b for a, b in zip(of_q[i], of_k[j])) if j <= i else None for j in range(TOKENS)]
                for i in range(TOKENS)]

    def chosen(i: int, j: int) -> str:
        return NEAR if j < start or i - j < recent else GROUPS[0] if meetings[i][j] >= 2 else ""

    p = Picture(3 * (SIDE + GAP) + 20, SIDE + 92)
    true = softmax([[1.2 * dot(q[i], k[j]) if j <= i else None for j in range(TOKENS)] for i in range(TOKENS)])
    for n, (title, words, rows, top) in enumerate([("softmax", "the weights to estimate", true, 1),
                                                   ("equal hashes", f"tables of {tables} where query and key meet",
                                                    meetings, tables)]):
        p.text(20 + n * (SIDE + GAP), 20, title, 13)
        p.text(20 + n * (SIDE + GAP), 36, words, 9)
        p.heat(20 + n * (SIDE + GAP), 48, rows, CELL, top)
    pairs(p, 20 + 2 * (SIDE + GAP), "read", "two meetings or more, and static keys", chosen)
    legend(p, SIDE + 68, [(GROUPS[0], "sampled by two equal hashes"), (NEAR, "start and recent"), ("white", "not read")])
    return p


def performer() -> Picture:
    draw = random.Random(31)
    width = 6
    vector = lambda: [draw.gauss(0, 0.9) for _ in range(width)]
    q, k = [vector() for _ in range(TOKENS)], [vector() for _ in range(TOKENS)]
    dot = lambda a, b: sum(x * y for x, y in zip(a, b))

    def estimate(features: int) -> Map:
        directions = [[draw.gauss(0, 1) for _ in range(width)] for _ in range(features)]
        phi = lambda x: [math.exp(dot(w, x) - dot(x, x) / 2) for w in directions]
        of_q, of_k = [phi(x) for x in q], [phi(x) for x in k]
        rows = [[dot(of_q[i], of_k[j]) if j <= i else None for j in range(TOKENS)] for i in range(TOKENS)]
        return [[None if x is None else x / sum(y for y in row if y is not None) for x in row] for row in rows]

    true = softmax([[dot(q[i], k[j]) if j <= i else None for j in range(TOKENS)] for i in range(TOKENS)])
    return panels([("softmax", "weights of all pairs"), ("8 features", "an estimate"), ("256 features", "a better one")],
                  [true, estimate(8), estimate(256)], [1, 1, 1])


def blend(share: float, colour: str) -> str:
    part = [int(colour[n:n + 2], 16) for n in (1, 3, 5)]
    return "#" + "".join(f"{round(255 - (255 - x) * min(1.0, share)):02x}" for x in part)


def legend(p: Picture, y: float, entries: list[tuple[str, str]]) -> None:
    x = 20.0
    for fill, words in entries:
        p.box(x, y, 10, 10, fill, "#999999")
        p.text(x + 15, y + 9, words, 10)
        x += 34 + 5.6 * len(words)


def lora() -> Picture:
    p = Picture(500, 178)
    p.box(20, 30, 110, 110, "#dddddd", "#999999")
    p.text(75, 89, "W", 15, "middle")
    p.text(75, 158, "frozen, [out, in]", 10, "middle")
    p.text(156, 90, "+  s", 15, "middle")
    p.box(186, 30, 16, 110, GROUPS[0], "#999999")
    p.text(194, 158, "B, [out, r], starts at 0", 10, "middle")
    p.box(232, 77, 110, 16, GROUPS[0], "#999999")
    p.text(287, 112, "A, [r, in]", 10, "middle")
    p.text(217, 90, "&#183;", 18, "middle")
    p.text(360, 90, "= what the layer computes", 10)
    return p


def pipeline() -> Picture:
    names = ["scale", "soft-cap", "convolve", "mix heads", "gate, bias", "allowed", "softmax", "convolve", "mix heads",
             "values"]
    users = ["Focal", "", "Multi-Token", "Talking heads", "Focus (soft)", "Focus (hard)", "sink logit", "Multi-Token",
             "Talking heads", "Differential"]
    width, step = 74, 88
    p = Picture(20 + step * len(names), 96)
    for n, (name, user) in enumerate(zip(names, users)):
        x = 12 + n * step
        p.box(x, 34, width, 30, GROUPS[0] if n == 6 else "#e3ebf3", "#4477aa")
        p.text(x + width / 2, 53, name, 11, "middle", "white" if n == 6 else INK)
        p.text(x + width / 2, 80, user, 10, "middle")
        p.text(x + width / 2, 26, str(n + 1), 10, "middle")
        if n + 1 < len(names):
            p.text(x + width + 7, 53, "&#8250;", 13, "middle")
    return p


DRAWINGS = {"focal": focal, "focus": focus, "multi-token": multi_token, "talking-heads": talking_heads,
            "differential": differential, "routing": routing, "lora": lora, "pipeline": pipeline,
            "windows": windows, "sparq": sparq, "performer": performer, "kv-shift": kv_shift, "magicpig": magic_pig}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "docs/images")
    folder = parser.parse_args().folder
    for name, draw in DRAWINGS.items():
        draw().write(folder / f"{name}.svg")


if __name__ == "__main__":
    main()
