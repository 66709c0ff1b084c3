"""A small SVG picture: boxes, lines of text and heat maps. Used by the draw-*.py scripts.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import pathlib

INK = "#222222"
SKIPPED = "#f4f4f4"
POSITIVE, NEGATIVE = (0x44, 0x77, 0xAA), (0xCC, 0x66, 0x77)


class Picture:
    def __init__(self, width: float, height: float):
        self.size = (width, height)
        self.parts: list[str] = []

    def box(self, x: float, y: float, w: float, h: float, fill: str, line: str = "") -> None:
        edge = f' stroke="{line}" stroke-width="0.6"' if line else ""
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" fill="{fill}"{edge}/>')

    def text(self, x: float, y: float, words: str, size: float = 11, anchor: str = "start", fill: str = INK) -> None:
        self.parts.append(f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}" fill="{fill}">{words}</text>')

    def heat(self, x: float, y: float, rows: list[list[float | None]], cell: float, top: float = 1.0) -> None:
        """Cells from white (0) to blue (`top`) or red (-`top`), lifted by a square root; None stays empty."""
        self.box(x, y, len(rows[0]) * cell, len(rows) * cell, SKIPPED, "#cccccc")
        for r, row in enumerate(rows):
            for c, value in enumerate(row):
                if value is not None:
                    self.box(x + c * cell, y + r * cell, cell, cell, shade(value / top))

    def write(self, path: pathlib.Path) -> None:
        w, h = self.size
        path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w:g} {h:g}" width="{w:g}" height="{h:g}" '
                        f'font-family="sans-serif">\n<rect width="{w:g}" height="{h:g}" fill="white"/>\n' +
                        "\n".join(self.parts) + "\n</svg>\n")


def shade(share: float) -> str:
    lifted = min(1.0, abs(share)) ** 0.5
    ink = POSITIVE if share >= 0 else NEGATIVE
    return "#" + "".join(f"{round(255 - (255 - part) * lifted):02x}" for part in ink)
