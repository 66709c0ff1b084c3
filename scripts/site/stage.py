#!/usr/bin/env python3
"""Lays out the pages of the site: stage.py FOLDER [DOXYGEN_HTML]

Pages keep their places in the repository, so that their links hold. A linked file that is no page becomes one, with its
text as code; a linked folder becomes a list of its files. The menu follows docs/README.md: a heading, then its table.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^)\s]+)(\))")
FENCE = re.compile(r"^ *```")
PICTURES = {".svg", ".png", ".webp"}
LANGUAGES = {".h": "cpp", ".cpp": "cpp", ".py": "python", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".sh": "bash",
             ".txt": "text", "": "text"}
LARGEST = 200_000  # bytes of a file that is shown whole


def tracked() -> list[str]:
    # With what is new and not ignored, so that a page can be looked at before it is committed.
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True,
                            text=True, check=True)
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


class Site:
    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.files = tracked()
        self.folders = {str(parent) for name in self.files for parent in pathlib.PurePath(name).parents}
        self.shown: set[str] = set()

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def page_of(self, target: str) -> str:
        """The staged name of a file or folder of the repository; shows it where that is not done yet."""
        if target.endswith(".md"):
            return "index.md" if target == "README.md" else target
        if pathlib.PurePath(target).suffix in PICTURES:
            shutil.copyfile(ROOT / target, self.make_room(target))
            return target
        is_folder = target in self.folders
        page = f"{target}/files.md" if is_folder else f"{target}.md"
        if page not in self.shown:
            self.shown.add(page)
            self.show_folder(target, page) if is_folder else self.show_file(target, page)
        return page

    def make_room(self, name: str) -> pathlib.Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def show_file(self, name: str, page: str) -> None:
        text = (ROOT / name).read_text(errors="replace")
        cut = len(text) > LARGEST
        language = LANGUAGES.get(pathlib.PurePath(name).suffix, "text")
        note = f"\n\nThe first {LARGEST} bytes; the repository has all of it." if cut else ""
        self.write(page, f"---\nsearch:\n  exclude: true\n---\n# `{name}`\n\n`````{language}\n{text[:LARGEST]}\n`````{note}\n")

    def show_folder(self, name: str, page: str) -> None:
        inside = [file for file in self.files if file.startswith(f"{name}/")]
        rows = [f"- [`{file[len(name) + 1:]}`]({os.path.relpath(self.page_of(file), name)})" for file in inside]
        self.write(page, f"---\nsearch:\n  exclude: true\n---\n# `{name}/`\n\n" + "\n".join(rows) + "\n")

    def stage(self, name: str) -> None:
        """One page, its links led to what is staged."""
        place = self.page_of(name)

        def lead(match: re.Match) -> str:
            address, _, anchor = match[2].partition("#")
            if not address or "://" in address or address.startswith("mailto:"):
                return match[0]
            target = os.path.normpath(os.path.join(os.path.dirname(name), address))
            if target not in self.files and target not in self.folders:
                return match[0]  # mkdocs reports it
            led = os.path.relpath(self.page_of(target), os.path.dirname(place) or ".")
            keep = f"#{anchor}" if anchor and target.endswith(".md") else ""
            return f"{match[1]}{led}{keep}{match[3]}"

        # Prose as a whole, for a link may go over two lines; code as it is.
        parts, prose, code = [], [], False
        for line in (ROOT / name).read_text().splitlines():
            if FENCE.match(line):
                code = not code
                line = re.sub(r"```(\w+) \w+$", r"```\1", line)  # ```yaml recipe: for our own check
            elif not code:
                prose.append(line)
                continue
            parts += [LINK.sub(lead, "\n".join(prose)), line] if prose else [line]
            prose = []
        parts.append(LINK.sub(lead, "\n".join(prose)))
        self.write(place, "\n".join(parts) + "\n")

    def menu(self, api: bool) -> list:
        sections: list = [{"Fovea": "index.md"}, {"All pages": "docs/README.md"}]
        for line in (ROOT / "docs/README.md").read_text().splitlines():
            if line.startswith("## "):
                sections.append({line[3:]: []})
            elif (row := re.match(r"\| \[([^\]]+)\]\(([^)]+)\)", line)) and isinstance(sections[-1], dict):
                target = os.path.normpath(os.path.join("docs", row[2]))
                next(iter(sections[-1].values())).append({row[1]: self.page_of(target)})
        return sections + ([{"API reference": "api/index.html"}] if api else [])


def main() -> None:
    folder = pathlib.Path(sys.argv[1]).resolve()
    doxygen = pathlib.Path(sys.argv[2]).resolve() if len(sys.argv) > 2 else None
    shutil.rmtree(folder, ignore_errors=True)
    site = Site(folder)
    pages = [name for name in site.files if name.endswith(".md") and not name.startswith(".github/")]
    for name in pages:
        site.stage(name)
    if doxygen is not None:
        shutil.copytree(doxygen, folder / "api")
    settings = (ROOT / "scripts/site/mkdocs.yml").read_text()
    menu = yaml.safe_dump({"nav": site.menu(doxygen is not None)}, sort_keys=False, allow_unicode=True)
    config = folder.with_suffix(".yml")
    config.write_text(settings.replace("../../build/", "") + menu)
    print(f"[docs] {len(pages)} pages, {len(site.shown)} files shown as pages")


if __name__ == "__main__":
    main()
