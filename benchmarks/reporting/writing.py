"""Writes results: a report, its picture and a summary to the repository; all samples stay on the machine.

benchmarks/results/ holds one report per benchmark, the newest: BENCHMARK.md, .json and .png, with date and commit
inside. The JSON has settings, summaries and medians; the times of all rounds go to results/BENCHMARK-DATE.json, which
git ignores.
"""

from __future__ import annotations

import io
import json
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

from benchmarks.reporting import timing

ROOT = pathlib.Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
SAMPLES = ROOT / "results"
LARGEST_JSON, LARGEST_PICTURE = 60_000, 65_000  # bytes, for files in the repository
DIGITS = 5
FEW = 4
WIDTH = 118


def write_results(name: str, summary: dict[str, Any], markdown: str, samples: Any = None) -> pathlib.Path:
    """Writes RESULTS/NAME.json and .md under a temporary name, then renames them; writes the samples to SAMPLES.

    Args:
        name: name of the benchmark.
        summary: settings, verdicts and medians; JSON-serialisable.
        markdown: text of the report.
        samples: times of every round; JSON-serialisable, or None.

    Returns:
        The path of the report without its suffix.
    """
    if samples is not None:
        write_samples(name, {**summary, "samples": samples})
    stem = RESULTS / name
    replace(stem.with_suffix(".json"), as_json(summary) + "\n")
    replace(stem.with_suffix(".md"), markdown)
    return stem


def write_samples(name: str, samples: Any) -> None:
    """Writes all samples, JSON-serialisable, to SAMPLES/NAME-DATE.json."""
    replace(SAMPLES / f"{name}-{timing.machine()['date']}.json", json.dumps(samples, indent=1) + "\n")


def save_picture(figure: Figure, path: str | pathlib.Path) -> None:
    """Saves a figure as PNG with few colours, at the highest resolution that stays below LARGEST_PICTURE."""
    for dots_per_inch in (120, 100, 80, 60):
        drawn, saved = io.BytesIO(), io.BytesIO()
        figure.savefig(drawn, dpi=dots_per_inch)
        few = Image.open(drawn).convert("RGB").quantize(64, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(saved, "PNG", optimize=True)
        if saved.tell() <= LARGEST_PICTURE:
            break
    pathlib.Path(path).write_bytes(saved.getvalue())


def medians(tree: Any) -> Any:
    """Replaces every list of more than FEW numbers, or pairs of numbers, by its median and count."""
    if isinstance(tree, dict):
        return {key: medians(value) for key, value in tree.items()}
    if not isinstance(tree, list | tuple):
        return tree
    if len(tree) > FEW and all(isinstance(each, int | float) for each in tree):
        return {"median": statistics.median(tree), "rounds": len(tree)}
    if len(tree) > FEW and all(isinstance(each, list | tuple) and len(each) == 2 for each in tree):
        return {"medians": [statistics.median(side) for side in zip(*tree, strict=True)], "rounds": len(tree)}
    return [medians(each) for each in tree]


def columns(rows: Sequence[dict[str, Any]]) -> dict[str, list]:
    """Rows with the same keys as a table that names each key once."""
    names = list(dict.fromkeys(key for row in rows for key in row))
    return {"columns": names, "rows": [[row.get(name) for name in names] for row in rows]}


def as_json(data: Any, indent: str = "") -> str:
    """JSON in which each line is as full as possible; numbers have DIGITS digits."""
    if isinstance(data, float):
        return json.dumps(float(f"{data:.{DIGITS}g}"))
    if not isinstance(data, dict | list | tuple) or not data:
        return json.dumps(data)
    inner = indent + " "
    if isinstance(data, dict):
        parts = [f"{json.dumps(str(key))}: {as_json(value, inner)}" for key, value in data.items()]
        opening, closing = "{}"
    else:
        parts = [as_json(value, inner) for value in data]
        opening, closing = "[]"
    return _fill(parts, opening, closing, inner)


def _fill(parts: list[str], opening: str, closing: str, indent: str) -> str:
    """Joins parts with commas, filling each line; a part of several lines begins a new one."""
    lines = [opening]
    for number, part in enumerate(parts):
        text = part + ("," if number < len(parts) - 1 else closing)
        space = "" if number == 0 else " "
        if "\n" in part or "\n" in lines[-1] or len(indent) + len(lines[-1]) + len(space + text) > WIDTH:
            lines.append(text)
        else:
            lines[-1] += space + text
    return f"\n{indent}".join(lines)


def replace(path: pathlib.Path, text: str) -> None:
    """Writes a file under a temporary name, then renames it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f"{path.suffix}.part")
    part.write_text(text)
    part.replace(path)
