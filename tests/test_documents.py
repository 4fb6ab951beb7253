"""The documents: links resolve, lines are wrapped, and the benchmark picture shows the figures of the reports."""

import re
from pathlib import Path

import pytest

from tools import draw_gain, draw_rooms

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
GENERATED = {"docs/horovod_names.md", "docs/horovod_scripts.md"}
WIDTH = 118
DOCUMENTS = [
    *ROOT.glob("*.md"),
    *(path for folder in ("docs", "examples") for path in (ROOT / folder).rglob("*.md")),
]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere_and_lines_are_wrapped(path):
    text = path.read_text()
    targets = [target for target in LINK.findall(text) if not re.match(r"[a-z]+:", target)]
    assert [target for target in targets if not (path.parent / target).exists()] == []
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in prose.splitlines() if not line.startswith(("|", "!["))]
    if path.relative_to(ROOT).as_posix() not in GENERATED:
        assert [line for line in lines if len(line) > WIDTH] == []


def test_each_report_has_its_place_in_the_navigation():
    listed = set(re.findall(r"reports/([a-z-]+)\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert listed == {path.stem for path in (ROOT / "benchmarks" / "results").glob("*.md")}


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_picture_of_the_benchmarks_can_be_drawn_from_the_reports_that_are_there(tmp_path, monkeypatch):
    monkeypatch.setattr(draw_gain, "PICTURE", tmp_path / "images" / "gain.png")
    draw_gain.main()
    times = draw_gain.exchange_times(draw_gain.load("exchange"))
    gains = draw_gain.training_gains(draw_gain.load("train"))
    told = " ".join((ROOT / "docs" / "benchmarks.md").read_text().split())
    assert f"takes {times['Horovod']:.0f} ms with Horovod, {times['hitopk, 1%']:.0f} ms with hitopk at 1%" in told
    assert f"training of VGG-19 is {gains['hitopk'][1]:.2f} times as fast" in told


def test_the_picture_of_the_rooms_is_that_of_the_sources():
    drawn = draw_rooms.page(draw_rooms.PAGE.read_text())
    assert drawn == draw_rooms.PAGE.read_text(), "run: python -m tools.draw_rooms"


def test_an_arrow_that_a_longer_way_says_is_left_out():
    found = {"a": {"b", "c"}, "b": {"c"}, "c": set()}
    assert draw_rooms.reduced(found) == {"a": {"b"}, "b": {"c"}, "c": set()}
