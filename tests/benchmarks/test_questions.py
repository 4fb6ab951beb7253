"""A benchmark of several questions: the result of one is kept while others are run again."""

import argparse
import json

import numpy as np
import pytest

from benchmarks.reporting import questions, writing
from benchmarks.reporting.report import Section, Verdict

NAMES = ["first", "second", "third"]


def section_of(name: str, value: float) -> Section:
    verdict = Verdict(f"{name}, seconds", "<= 1", f"{value}", bool(np.median(value) <= 1))
    return Section(
        f"The {name} one",
        ["Words.", "", "### Its table", "", "| a |", "|---|", f"| {value} |"],
        {"value": value},
        [verdict],
    )


def ask(words, keeps=True, drawn=None, summarise=None, **values):
    measures = {name: lambda say, name=name: section_of(name, values[name]) for name in NAMES if name in values}
    draw = None if drawn is None else lambda name, section: drawn.append((name, section.figures["value"]))
    questions.ask("some", "Some", NAMES, measures, words, keeps, draw, summarise)


def test_what_was_not_asked_again_stays_and_what_was_takes_its_place(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(writing, "RESULTS", tmp_path)
    drawn = []
    ask(["--once"], third=0.5, first=2.0)
    ask(["--questions", "second"], second=3.0)
    ask(["--questions", "first"], first=0.25, drawn=drawn)
    text, told = (tmp_path / "some.md").read_text(), json.loads((tmp_path / "some.json").read_text())
    assert list(told) == NAMES and [told[name]["figures"]["value"] for name in NAMES] == [0.25, 3.0, 0.5]
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "# Some",
        "## Targets",
        *(line for name in NAMES for line in (f"## The {name} one", "### Its table")),
    ]
    assert text.count("| first, seconds | <= 1 | 0.25 | met |") == 1 and "**missed**" in text
    assert text.count("`bench_some --once`") == text.count("`bench_some --questions first`") == 1
    assert drawn == [("first", 0.25)]
    printed = capsys.readouterr().out
    assert "The second one" not in printed[printed.rindex("# Some") :], "what was asked is told"
    ask([], first=0.25)
    again = (tmp_path / "some.md").read_text()
    assert again == text.replace("`bench_some --questions first`", "`make bench-some`")


def test_figures_are_drawn_whole_reported_in_summary_and_kept_on_the_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "RESULTS", tmp_path / "reports")
    monkeypatch.setattr(writing, "SAMPLES", tmp_path / "samples")
    drawn, times = [], [1.0, 2.0, 3.0, 4.0, 9.0]
    ask([], drawn=drawn, summarise=writing.medians, second=times)
    told = json.loads((tmp_path / "reports" / "some.json").read_text())
    assert told["second"]["figures"]["value"] == {"median": 3.0, "rounds": 5}
    (samples,) = (tmp_path / "samples").glob("some-second-*.json")
    assert json.loads(samples.read_text()) == {"value": times} and drawn == [("second", times)]


def test_a_dry_run_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "RESULTS", tmp_path)
    ask([], keeps=False, first=1.0)
    assert not [*tmp_path.iterdir()]


def test_a_report_without_sections_of_their_own_dates_is_made_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "RESULTS", tmp_path)
    (tmp_path / "some.json").write_text(json.dumps({"machine": {}, "second": {"verdicts": [], "figures": {}}}))
    (tmp_path / "some.md").write_text("# Some\n\n## The second one\n\nWords.\n")
    ask([], first=1.0)
    assert "The second one" not in (tmp_path / "some.md").read_text()


def test_questions_are_asked_in_their_own_order_and_others_refused(capsys):
    parser = argparse.ArgumentParser()
    questions.add_arguments(parser, NAMES)
    assert questions.asked(parser, parser.parse_args([]), NAMES) == NAMES
    assert questions.asked(parser, parser.parse_args(["--questions", "third,first"]), NAMES) == ["first", "third"]
    with pytest.raises(SystemExit):
        questions.asked(parser, parser.parse_args(["--questions", "first,last"]), NAMES)
    assert "expected questions from first, second, third, got first,last" in capsys.readouterr().err
