"""Draws the folders and their imports in docs/architecture.md, as a Mermaid diagram.

    .venv/bin/python -m tools.draw_rooms            # writes the page
    .venv/bin/python -m tools.draw_rooms --print    # prints it

The imports are read by grimp, on which import-linter is built. Arrows that a longer path implies are left out.
"""

from __future__ import annotations

import argparse
import pathlib
import re
from collections.abc import Mapping

import grimp

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "architecture.md"
PACKAGES = ("hvd_sparse", "datacache", "lars", "link")
# These only re-export names, prepare, or are of no room.
_NO_ROOMS = ("_short_names", "_command", "_compiled", "_dependencies", "_living", "_logging", "_version")
HIDDEN = {"hvd_sparse", *(f"hvd_sparse.{name}" for name in _NO_ROOMS)}
BLOCK = re.compile(r"```mermaid\n.*?```\n", re.DOTALL)

Imports = dict[str, set[str]]


def room(module: str) -> str:
    """The folder or single module of `hvd_sparse` that a module is in; each other package is one room."""
    package, *inner = module.split(".")
    return f"{package}.{inner[0]}" if package == "hvd_sparse" and inner else package


def imports() -> Imports:
    """The rooms that each room imports."""
    graph = grimp.build_graph(*PACKAGES)
    found: Imports = {room(module): set() for module in graph.modules}
    for module in graph.modules:
        found[room(module)] |= {room(other) for other in graph.find_modules_directly_imported_by(module)}
    return {name: others - HIDDEN - {name} for name, others in sorted(found.items()) if name not in HIDDEN}


def reduced(found: Imports) -> Imports:
    """Removes the arrows that a longer path implies."""
    return {
        name: {each for each in others if not any(each in _below(other, found) for other in others)}
        for name, others in found.items()
    }


def _below(name: str, found: Imports) -> set[str]:
    below: set[str] = set()
    for other in found[name]:
        below |= {other} | _below(other, found)
    return below


def diagram(found: Mapping[str, set[str]]) -> str:
    """The rooms and arrows in Mermaid's syntax."""
    lines = ["```mermaid", "flowchart TD"]
    lines += [f'    {name.replace(".", "_")}["{name.removeprefix("hvd_sparse.")}"]' for name in found]
    lines += [
        f"    {name.replace('.', '_')} --> {other.replace('.', '_')}"
        for name, others in found.items()
        for other in sorted(others)
    ]
    return "\n".join([*lines, "```", ""])


def page(text: str) -> str:
    """The page with the current diagram."""
    return BLOCK.sub(lambda _: diagram(reduced(imports())), text, count=1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the folders and their imports into docs/architecture.md.")
    parser.add_argument("--print", action="store_true", help="print the page instead of writing it")
    text = page(PAGE.read_text())
    if parser.parse_args().print:
        print(text)
    else:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
