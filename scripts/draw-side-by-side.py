#!/usr/bin/env python3
"""Draws a side-by-side.json of `fovea eval --systems --out`: quality against the pairs, or the bytes, that are read.

    scripts/draw-side-by-side.py RESULT.json --length 2048 --out docs/images/retrofit.svg [--x bytes] [--families NAME ...]

A family is a beginning of systems' names ("top-", "window"); its points are joined, and the others are left out. Without
--families every system is one of its own.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import itertools
import json
import math
import pathlib
import sys

from svg_picture import INK, Picture

COLOURS = ["#222222", "#4477aa", "#cc6677", "#228833", "#ddaa33", "#aa3377", "#66ccee", "#888888", "#994f00", "#5d3a9b"]
WIDTH, HEIGHT, LEFT, TOP = 300, 220, 52, 40


def family(name: str, families: list[str]) -> str | None:
    """The first that the name begins with; without any, the name."""
    return next((f for f in families if name.startswith(f)), None) if families else name


def ticks(low: float, high: float, log: bool) -> list[float]:
    if log:
        steps = [m * 10.0**e for e in range(-3, 6) for m in (1, 2, 5)]
        return [t for t in steps if low <= t <= high]
    step = 10.0 ** math.floor(math.log10(high - low))
    for factor in (0.2, 0.5, 1, 2):
        if (high - low) / (step * factor) <= 6:
            step *= factor
            break
    return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


class Panel:
    """Axes at (x, y) of a picture."""

    def __init__(self, picture: Picture, x: float, title: str, points: list[tuple[str, float, float]], x_title: str, log: bool):
        self.picture, self.x, self.log = picture, x, log
        xs, ys = [p[1] for p in points], [p[2] for p in points]
        spread = (max(ys) - min(ys)) or 1.0
        self.x_low, self.x_high = 0.0, max(xs) * 1.05
        self.y_low, self.y_high = (min(ys) / 1.1, max(ys) * 1.1) if log else (min(ys) - 0.05 * spread, max(ys) + 0.05 * spread)
        p = picture
        p.text(x, 20, title, 13)
        p.box(x, TOP, WIDTH, HEIGHT, "#ffffff", "#bbbbbb")
        for t in ticks(self.y_low, self.y_high, log):
            p.text(x - 5, self.down(t) + 3, f"{t:g}", 9, "end")
            p.box(x, self.down(t), WIDTH, 0.4, "#eeeeee")
        for t in ticks(self.x_low, self.x_high, False):
            p.text(self.right(t), TOP + HEIGHT + 13, f"{t:g}", 9, "middle")
        p.text(x + WIDTH / 2, TOP + HEIGHT + 28, x_title, 10, "middle")

    def right(self, value: float) -> float:
        return self.x + WIDTH * (value - self.x_low) / (self.x_high - self.x_low)

    def down(self, value: float) -> float:
        scale = math.log if self.log else float
        return TOP + HEIGHT * (1 - (scale(value) - scale(self.y_low)) / (scale(self.y_high) - scale(self.y_low)))

    def curve(self, colour: str, points: list[tuple[float, float]]) -> None:
        places = [(self.right(x), self.down(y)) for x, y in sorted(points)]
        if len(places) > 1:
            way = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            self.picture.parts.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="1.4"/>')
        for x, y in places:
            self.picture.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="{colour}"/>')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=pathlib.Path)
    parser.add_argument("--length", type=int, required=True, help="tokens of the windows")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--x", choices=["pairs", "bytes"], default="pairs")
    parser.add_argument("--families", nargs="*", default=[], help="beginnings of the names to draw")
    asked = parser.parse_args()
    systems = json.loads(asked.result.read_text())["systems"]
    rows = []  # family, x, perplexity, copy
    for system in systems:
        its = family(system["name"], asked.families)
        if its is None:
            continue
        score = next((s for s in system["scores"] if s["length"] == asked.length), None)
        if score is None:
            sys.exit(f"[draw] '{system['name']}' has no score at {asked.length} tokens in {asked.result}")
        x = score["pairs"] if asked.x == "pairs" else score["cache_bytes_read"]
        if x is not None:
            rows.append((its, x * 100 if asked.x == "pairs" else x / 1e6, score["perplexity"], score.get("copy_perplexity")))
    names = list(dict.fromkeys(r[0] for r in rows))
    x_title = "% of causal pairs" if asked.x == "pairs" else "MB of the caches read a token"
    panels = [("Perplexity", 2, False)]
    if all(r[3] for r in rows):
        panels.append(("Perplexity of a text that comes again", 3, True))
    picture = Picture(LEFT + len(panels) * (WIDTH + LEFT + 14), TOP + HEIGHT + 50 + 16 * ((len(names) + 2) // 3))
    for n, (title, column, log) in enumerate(panels):
        points = [(r[0], r[1], r[column]) for r in rows]
        panel = Panel(picture, LEFT + n * (WIDTH + LEFT + 14), title, points, x_title, log)
        for colour, name in zip(itertools.cycle(COLOURS), names):
            panel.curve(colour, [(x, y) for system, x, y in points if system == name])
    for n, (colour, name) in enumerate(zip(itertools.cycle(COLOURS), names)):
        name = name.rstrip("-, ")
        x, y = LEFT + n % 3 * 220, TOP + HEIGHT + 50 + n // 3 * 16
        picture.parts.append(f'<circle cx="{x}" cy="{y - 4}" r="4" fill="{colour}"/>')
        picture.text(x + 9, y, name, 11, fill=INK)
    picture.write(asked.out)
    print(f"[draw] {asked.out}: {len(rows)} systems at {asked.length} tokens")


if __name__ == "__main__":
    main()
