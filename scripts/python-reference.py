#!/usr/bin/env python3
"""docs/python-reference.md from the docstrings of python/fovea; with --check it says whether the page is current.

The sources are read, not imported: neither torch nor the built package is needed.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
import ast
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/python-reference.md"
PACKAGE = ROOT / "python/fovea"
# Module, heading, and names; None: every public one.
MODULES = [("_attention", "fovea", ["attention"]), ("_decode", "fovea", ["decode", "Cache"]), ("focus", "fovea", ["focus_groups", "sinkhorn_potentials"]),
           ("_patterns", "fovea", ["routes", "places_in_cache"]), ("_performer", "fovea", ["performer_features"]),
           ("_settings", "fovea", None), ("nn", "fovea.nn", None), ("transformers", "fovea.transformers", ["register"]),
           ("retrofit", "fovea.retrofit", None), ("comparison", "fovea.comparison", None)]
HEAD = """<!-- Made by scripts/python-reference.py from the docstrings of python/fovea. -->
# Python: reference

Every public name of the [Python package](python.md). Shapes: b batch, h query heads, g key and value
heads, t queries, s keys, d width of q and k, e width of v.
"""
INDENT = " " * 4


def is_public(node: ast.AST, names) -> bool:
    if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return False
    return node.name in names if names else not node.name.startswith("_") and ast.get_docstring(node) is not None


def fields(node: ast.ClassDef) -> list[str]:
    """Arguments of a dataclass or of __init__."""
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
            return arguments(inner)[1:]
    found = [n for n in node.body if isinstance(n, ast.AnnAssign)]
    return [ast.unparse(n.target) + ": " + ast.unparse(n.annotation) + (f" = {ast.unparse(n.value)}" if n.value else "")
            for n in found]


def arguments(node: ast.FunctionDef) -> list[str]:
    given, found = node.args, []

    def add(arg: ast.arg, default) -> None:
        kind = f": {ast.unparse(arg.annotation)}" if arg.annotation else ""
        found.append(arg.arg + kind + (f" = {ast.unparse(default)}" if default is not None else ""))

    defaults = [None] * (len(given.args) - len(given.defaults)) + given.defaults
    for arg, default in zip(given.args, defaults):
        add(arg, default)
    if given.kwonlyargs:
        found.append("*")
    for arg, default in zip(given.kwonlyargs, given.kw_defaults):
        add(arg, default)
    return found + ([f"**{given.kwarg.arg}"] if given.kwarg else [])


def signature(prefix: str, node) -> str:
    listed = arguments(node) if isinstance(node, ast.FunctionDef) else fields(node)
    end = f" -> {ast.unparse(node.returns)}" if isinstance(node, ast.FunctionDef) and node.returns else ""
    line = f"{prefix}.{node.name}({', '.join(listed)}){end}"
    if len(line) <= 96:
        return line
    return f"{prefix}.{node.name}(\n" + "".join(f"{INDENT}{x},\n" for x in listed) + f"){end}"


def prose(text: str) -> str:
    """Paragraphs as they are; lines `name: meaning` become a list."""
    blocks = []
    for block in re.split(r"\n\s*\n", text.strip()):
        items: list[str] = []
        for line in map(str.strip, block.splitlines()):
            # A name begins a new item; what follows a finished list item goes on in it.
            if re.match(r"^(`?[a-z_]+`?(, `?[a-z_]+`?)*( \[[^\]]*\])*): ", line):
                name, _, meaning = line.partition(": ")
                items.append(f"- `{name.replace('`', '')}`: {meaning}")
            elif items:
                items[-1] += " " + line
            else:
                items.append(line)
        blocks.append("\n".join(textwrap.fill(x, 100, subsequent_indent="  " if x.startswith("- ") else "",
                                              break_long_words=False, break_on_hyphens=False) for x in items))
    return "\n\n".join(blocks)


def methods(prefix: str, node) -> str:
    """Public methods and properties of a class, but for `forward`, with their docstrings."""
    parts = []
    for inner in node.body if isinstance(node, ast.ClassDef) else []:
        if is_public(inner, None) and not any(isinstance(base, ast.Attribute) for base in node.bases):
            of = any(ast.unparse(x) == "property" for x in inner.decorator_list)
            listed = "" if of else f"({', '.join(arguments(inner)[1:])})"
            parts.append(f"\n- `{prefix}.{node.name}.{inner.name}{listed}`: " + " ".join((ast.get_docstring(inner) or "").split()))
    return "".join(textwrap.fill(x, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False,
                                 drop_whitespace=True) + "\n" for x in parts)


def page() -> str:
    parts, last = [HEAD], ""
    for module, prefix, names in MODULES:
        tree = ast.parse((PACKAGE / f"{module}.py").read_text())
        if prefix != last:
            parts.append(f"## {prefix}\n")
            last = prefix
        nodes = {node.name: node for node in tree.body if is_public(node, names)}
        for name in names or nodes:
            node = nodes[name]
            parts.append(f"### {prefix}.{name}\n\n```python\n{signature(prefix, node)}\n```\n\n{prose(ast.get_docstring(node) or '')}\n")
            if listed := methods(prefix, node):
                parts.append(listed)
    return "\n".join(parts)


def main() -> int:
    made = page()
    if "--check" not in sys.argv:
        PAGE.write_text(made)
        return 0
    if PAGE.exists() and PAGE.read_text() == made:
        return 0
    print(f"{PAGE.relative_to(ROOT)} is not current; run scripts/python-reference.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
