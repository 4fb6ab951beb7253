"""Stored runs are identified by code: prose and imports may change, code may not; others are adopted or stay stale."""

from __future__ import annotations

import json
import pathlib
import shutil

import pytest

from benchmarks.studies import adopt, sources
from benchmarks.studies.sources import code_of

PLAIN = '''
def mean(values, scale=1.0):
    """The mean."""
    total = sum(values)  # all of them
    return scale * total / len(values)


class Empty:
    """Nothing."""
'''


def written(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf8")
    return code_of(path)


def test_comments_docstrings_and_layout_are_left_out(tmp_path):
    other = '"""A module."""\n' + PLAIN.replace("The mean.", "The sum over the count,\n    in two lines.")
    other = other.replace("  # all of them", "").replace("scale * total", "(scale *\n            total)")
    assert other != PLAIN and written(tmp_path, "a.py", PLAIN) == written(tmp_path, "b.py", other)
    bare = PLAIN.replace('    """The mean."""\n', "").replace('"""Nothing."""', "pass")
    assert written(tmp_path, "c.py", bare) == code_of(tmp_path / "a.py")


@pytest.mark.parametrize("one, other", [("1.0", "2.0"), ("scale * total", "total * scale"), ("mean", "average")])
def test_code_counts(tmp_path, one, other):
    assert written(tmp_path, "a.py", PLAIN) != written(tmp_path, "b.py", PLAIN.replace(one, other))


def test_a_string_that_is_no_docstring_counts(tmp_path):
    text = 'def name():\n    """Who."""\n    return "{}"\n'
    assert written(tmp_path, "a.py", text.format("one")) != written(tmp_path, "b.py", text.format("two"))


def test_imports_and_what_errors_say_are_left_out(tmp_path):
    one = "from a import b\nimport c.d\n\ndef f(x):\n    if x:\n        raise ValueError('it is so')\n    return b(x)\n"
    other = "from z import b\nd = extras.need('c.d')\n\ndef f(x):\n    import e\n    if x:\n"
    other += "        raise ValueError(f'it is {x}, and must not be') from None\n    return b(x)\n"
    assert written(tmp_path, "a.py", one) == written(tmp_path, "b.py", other)
    assert written(tmp_path, "c.py", one.replace("ValueError", "OSError")) != code_of(tmp_path / "a.py")
    assert written(tmp_path, "d.py", "from a import b\n") == written(tmp_path, "e.py", '"""Nothing."""\n')


# ---- runs of a commit ----

RUN = {"arm": "dense", "seed": 3}


@pytest.fixture
def trees(tmp_path, monkeypatch):
    """Writes the source of a run today and at a commit, and gives the study and the commit's tree."""

    def make(today, then, **moved):
        now, before = tmp_path / "now", tmp_path / "then"
        for root, text, name in ((now, today, "part.py"), (before, then, moved.get("part", "part.py"))):
            (root / "benchmarks" / "studies").mkdir(parents=True)
            shutil.copy(pathlib.Path(sources.__file__), root / "benchmarks" / "studies")
            (root / name).write_text(text)
        monkeypatch.setattr(sources, "ROOT", now)
        names = {"part.py": moved["part"]} if moved else {}
        study = adopt.Study(now / "runs.jsonl", lambda row: sources.fingerprint_of(RUN, ["part.py"], now))
        return study, adopt.tree(before, names)

    return make


def kinds_of(study, commit, stored=None):
    rows = [{**RUN, "fingerprint": stored or commit.own.fingerprint_of(RUN, [*commit.names.values(), "part.py"][:1])}]
    made, kinds = adopt.adopt(rows, study, commit)
    assert [{**row, "fingerprint": ""} for row in made] == [{**row, "fingerprint": ""} for row in rows]
    assert (made[0]["fingerprint"] == study.fingerprint(rows[0])) == (kinds["stale"] == 0)
    return [kind for kind, count in kinds.items() if count]


def test_a_run_whose_sources_determine_the_same_is_adopted_under_its_new_fingerprint(trees, monkeypatch):
    study, commit = trees(PLAIN, PLAIN.replace("def mean", "import math\n\ndef mean"))
    # The commit's own fingerprints count imports, as earlier ones did.
    monkeypatch.setattr(commit.own, "_imports", lambda node: False)
    assert kinds_of(study, commit) == ["adopted"]


def test_a_run_whose_source_had_another_name_is_adopted(trees, monkeypatch):
    study, commit = trees(PLAIN, "import math\n" + PLAIN, part="old.py")
    monkeypatch.setattr(commit.own, "_imports", lambda node: False)
    assert kinds_of(study, commit) == ["adopted"]


def test_a_run_with_other_code_or_of_another_commit_stays_stale(trees):
    study, commit = trees(PLAIN, PLAIN.replace("1.0", "2.0"))
    assert kinds_of(study, commit) == ["stale"]
    assert kinds_of(study, commit, stored="0" * 16) == ["stale"]


def test_a_run_without_a_source_at_the_commit_stays_stale(trees):
    study, commit = trees(PLAIN, PLAIN, part="old.py")
    assert kinds_of(study, commit._replace(names={}), stored="0" * 16) == ["stale"]


def test_a_current_run_is_left_alone(trees):
    study, commit = trees(PLAIN, PLAIN)
    assert kinds_of(study, commit) == ["current"]


def test_a_store_is_replaced_when_it_is_whole(tmp_path):
    rows = [{"b": 1, "a": "x"}, {"a": "y"}]
    adopt.write(tmp_path / "runs.jsonl", rows)
    assert [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()] == rows
    assert [path.name for path in tmp_path.iterdir()] == ["runs.jsonl"]


def test_stored_runs_that_can_be_made_here_are_current():
    """Where the data of a study are those of another machine, its runs are not."""
    row = json.loads(adopt.STUDIES["averaging"].store.read_text().splitlines()[0])
    assert adopt.STUDIES["averaging"].fingerprint(row) == row["fingerprint"]
