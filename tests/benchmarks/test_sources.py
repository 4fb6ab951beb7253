"""Stored runs are identified by code: prose may change, code may not."""

from __future__ import annotations

import pytest

from benchmarks.sources import code_of

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
