#!/usr/bin/env python3
"""Draws the pictures of docs/kernels/grouped.md: the plans of grouped attention, and the chooser's map.

    build/bin/attention_grouped --only chooser --output benchmarks/results/attention-grouped-KIND.json
    scripts/draw-grouped.py [RESULTS] [--folder docs/images]

The plans are drawn from 24 tokens in three groups, window 4, by the rules of the text. The map is read from the
results that the benchmark wrote.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import json
import pathlib

from svg_picture import INK, SKIPPED, Picture

ROOT = pathlib.Path(__file__).resolve().parent.parent
GROUPS = ["#4477aa", "#cc6677", "#ddaa33"]
NEAR = "#bbbbbb"
PLANS = {"dense": "#cccccc", "block_sparse": "#ddaa33", "classes": "#4477aa", "groups": "#228833"}
TOKENS, WINDOW, TILE, CELL = 24, 4, 4, 9
# Each token's set of groups: runs, and two tokens in two groups.
MEMBERS = [{0}, {0}, {1}, {1}, {1}, {2}, {2}, {0}, {0}, {0, 1}, {1}, {2},
           {2}, {2}, {0}, {1}, {1}, {0}, {0, 1}, {2}, {1}, {0}, {0}, {2}]


def near(i: int, j: int) -> bool:
    return 0 <= i - j < WINDOW


def meet(i: int, j: int) -> bool:
    return bool(MEMBERS[i] & MEMBERS[j])


def colour(i: int, j: int) -> str:
    return NEAR if near(i, j) else GROUPS[min(MEMBERS[i] & MEMBERS[j])]


def grid(picture: Picture, x: float, y: float, rows: list, columns: list, seen, visited) -> None:
    """Pairs of the tokens `rows` and `columns`; tiles that nobody visits stay blank."""
    picture.box(x, y, len(columns) * CELL, len(rows) * CELL, SKIPPED, "#cccccc")
    for r in range((len(rows) + TILE - 1) // TILE):
        for c in range((len(columns) + TILE - 1) // TILE):
            w, h = min(TILE, len(columns) - c * TILE), min(TILE, len(rows) - r * TILE)
            if visited(r, c):
                picture.box(x + c * TILE * CELL, y + r * TILE * CELL, w * CELL, h * CELL, "white", "#555555")
    for r, i in enumerate(rows):
        for c, j in enumerate(columns):
            if i is not None and j is not None and seen(i, j):
                picture.box(x + c * CELL + 1, y + r * CELL + 1, CELL - 2, CELL - 2, colour(i, j))


def tiles(rows: list, columns: list, seen):
    visited = {(r // TILE, c // TILE) for r, i in enumerate(rows) for c, j in enumerate(columns)
               if i is not None and j is not None and seen(i, j)}
    return lambda r, c: (r, c) in visited


def draw_plans() -> Picture:
    everybody = list(range(TOKENS))
    side = TOKENS * CELL
    p = Picture(3 * side + 210, side + 290)
    top = 54

    def panel(x: float, y: float, rows: list, columns: list, seen) -> None:
        grid(p, x, y, rows, columns, seen, tiles(rows, columns, seen))

    x = 20
    p.text(x, 20, "block_sparse", 13)
    p.text(x, 36, "one pass in the tokens' order; a tile compares memberships", 9)
    panel(x, top, everybody, everybody, lambda i, j: i >= j and (near(i, j) or meet(i, j)))

    x += side + 55
    p.text(x, 20, "classes", 13)
    p.text(x, 36, "far pairs, tokens sorted by their set of groups", 9)
    order: list[int | None] = []  # every list fills whole tiles
    for members in sorted({tuple(sorted(m)) for m in MEMBERS}):
        order += [n for n in everybody if MEMBERS[n] == set(members)]
        order += [None] * (-len(order) % TILE)
    panel(x, top, order, order, lambda i, j: i - j >= WINDOW and meet(i, j))
    p.text(x, top + len(order) * CELL + 14, "no test inside a tile but &#8220;not later&#8221;", 9)

    x += len(order) * CELL + 40
    p.text(x, 20, "groups", 13)
    p.text(x, 36, "far pairs, a list a group; a pair counts in its lowest", 9)
    y = top
    for group in range(3):
        own = [n for n in everybody if group in MEMBERS[n]]
        panel(x, y, own, own,
              lambda i, j, g=group: i - j >= WINDOW and meet(i, j) and min(MEMBERS[i] & MEMBERS[j]) == g)
        y += len(own) * CELL + 12

    y = top + len(order) * CELL + 36
    p.text(20 + side + 55, y, "and the near pairs (i - j &lt; w) in the tokens' order:", 9)
    panel(20 + side + 55, y + 8, everybody[-12:], everybody[-16:], near)
    for n, (fill, words) in enumerate([(GROUPS[0], "share group A"), (GROUPS[1], "group B"), (GROUPS[2], "group C"),
                                       (NEAR, "near"), ("white", "visited, not seen"), (SKIPPED, "skipped")]):
        p.box(20, y + n * 18, 11, 11, fill, "#999999")
        p.text(37, y + n * 18 + 10, words, 10)
    p.text(20, y + 130, "queries downwards, keys to the right; boxes are tiles", 9)
    return p


def draw_map(results: dict) -> Picture:
    maps = [r for r in results["results"] if r["name"].startswith("chooser")]
    if not maps:
        raise SystemExit("the results have no 'chooser' entries; run attention_grouped --only chooser --output first")
    maps.sort(key=lambda r: r["name"])
    cell_w, cell_h = 46, 22
    lengths, groups = maps[0]["lengths"], maps[0]["groups"]
    w, h = len(lengths) * cell_w + 60, len(groups) * cell_h + 70
    p = Picture(2 * w + 20, ((len(maps) + 1) // 2) * h + 40)
    for n, one in enumerate(maps):
        x, y = 50 + n % 2 * w, 40 + n // 2 * h
        p.text(x, y - 10, one["name"].replace("chooser, ", ""), 12)
        for r, plans in enumerate(one["plans"]):
            p.text(x - 6, y + r * cell_h + 15, f"K={groups[r]}", 10, "end")
            for c, plan in enumerate(plans):
                p.box(x + c * cell_w, y + r * cell_h, cell_w, cell_h, PLANS[plan], "white")
                p.text(x + c * cell_w + cell_w / 2, y + r * cell_h + 15, f"{100 * one['tiles_visited'][r][c]:.0f} %", 9,
                       "middle", "white" if plan in ("classes", "groups") else INK)
        for c, length in enumerate(lengths):
            name = f"{length // 1024}K" if length >= 1024 else str(length)
            p.text(x + c * cell_w + cell_w / 2, y + len(groups) * cell_h + 14, name, 10, "middle")
    x, y = 50, p.size[1] - 22
    for plan, fill in PLANS.items():
        p.box(x, y, 11, 11, fill, "#999999")
        p.text(x + 16, y + 10, plan, 10)
        x += 110
    p.text(x, y + 10, "numbers: tiles visited, of those of a causal mask (w = 128)", 10)
    return p


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("results", nargs="?", type=pathlib.Path,
                        default=ROOT / "benchmarks/results/attention-grouped-cascadelake-avx512.json")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "docs/images")
    options = parser.parse_args()
    draw_plans().write(options.folder / "grouped-plans.svg")
    draw_map(json.loads(options.results.read_text())).write(options.folder / "grouped-chooser.svg")


if __name__ == "__main__":
    main()
