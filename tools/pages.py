"""A hook of MkDocs (mkdocs.yml): adds pages from outside docs/, and adapts links so that they work on the web pages."""

from __future__ import annotations

import logging
import os
import pathlib
import re
from typing import Any

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parents[1]
OUTSIDE = {  # path in the repository -> page
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/from_horovod/README.md": "examples/from_horovod.md",
    "examples/launch/README.md": "examples/launch.md",
}
RESULTS = "benchmarks/results"
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_log = logging.getLogger("mkdocs.hooks.pages")


def outside() -> dict[str, str]:
    """All pages from outside docs/, in the form of OUTSIDE."""
    reports = {
        path.relative_to(ROOT).as_posix(): f"reports/{path.name}"
        for path in sorted((ROOT / RESULTS).iterdir())
        if path.suffix in (".md", ".png")
    }
    return {**OUTSIDE, **reports}


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages from outside docs/."""
    for path, page in outside().items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turns links between files of the repository into links between pages; links to other files become plain text."""
    pages = outside()
    origin = {there: here for here, there in pages.items()}.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def replace(link: re.Match[str]) -> str:
        mark, text, target, anchor = link.group(1), link.group(2), link.group(3), link.group(4) or ""
        if re.match(r"[a-z]+:", target):
            return link.group(0)
        path = os.path.normpath(os.path.join(os.path.dirname(origin), target))
        if not (ROOT / path).exists():
            _log.warning(f"{origin} links to {target}, which does not exist")
            return link.group(0)
        there = pages.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if there is None:
            return text
        return f"{mark}[{text}]({os.path.relpath(there, os.path.dirname(page.file.src_uri) or '.')}{anchor})"

    return LINK.sub(replace, markdown)
