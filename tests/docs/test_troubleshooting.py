"""The messages of docs/troubleshooting.md are those of the source, and each warning of ours is among them."""

import ast
import functools
import importlib.util
import pathlib
import re

import pytest

from tests.docs.blocks import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"
OF_OTHERS = "## What Horovod, Keras and TensorFlow say"
VALUE = "\0"  # a value in a message, for which the page has "..."


def messages(text):
    """What the first columns of the tables quote; several in a cell are in lines of their own."""
    cells = re.findall(r"^\| (.+?) \| ", text, re.MULTILINE)
    return [message for cell in cells if cell != "message" for message in cell.split("<br>")]


def pattern(message):
    """A pattern that finds a message in the source, where "..." is any text."""
    parts = message.removeprefix("...").split("...")
    return re.compile(".*".join(map(re.escape, parts)), re.DOTALL)


@functools.cache
def texts(*packages):
    """All texts of the sources of packages in the repository; values in them are VALUE."""
    paths = [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]
    return [text for path in paths for text in _texts(ast.parse(path.read_text()))]


def _texts(tree):
    for node in ast.walk(tree):
        text = _text(node)
        if text is not None:
            yield text


def _text(node):
    """A text, or one with values in it, as one string; None for other nodes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%[a-z,.0-9]*[sdfgr]|\{\}", VALUE, node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or VALUE for part in node.values)
    return None


OURS, OTHERS = PAGE.read_text().split(OF_OTHERS)
KERNELS = [text for path in sorted((ROOT / "ops").rglob("*.cc")) for text in re.findall(r'"(.*?)"', path.read_text())]


@pytest.mark.parametrize("message", messages(OURS))
def test_the_message_is_in_the_source(message):
    found = pattern(message)
    assert any(found.search(text) for text in [*texts("hvd_sparse", "datacache", "lars", "link"), *KERNELS]), (
        f"Nothing says {message!r} any more: correct its row in {PAGE.name}."
    )


@functools.cache
def of_others():
    """All bytes in which Horovod and Keras have their messages."""
    horovod, keras = (pathlib.Path(importlib.util.find_spec(name).origin).parent for name in ("horovod", "keras"))
    paths = [*horovod.rglob("*.py"), *(horovod / "tensorflow").glob("*.so"), *(keras / "src/trainers").rglob("*.py")]
    return b"".join(path.read_bytes() for path in paths)


@pytest.mark.parametrize("message", messages(OTHERS))
def test_the_message_is_in_horovod_or_keras(message):
    assert message.encode() in of_others()


def _warnings():
    """Each warning of the packages whose text is at the call: its place and its text."""
    for package in ("hvd_sparse", "datacache", "lars"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                called = node.func if isinstance(node, ast.Call) else None
                if isinstance(called, ast.Attribute) and called.attr in ("warn", "warning") and _text(node.args[0]):
                    yield pytest.param(_text(node.args[0]), id=f"{path.relative_to(ROOT)}:{node.lineno}")


@pytest.mark.parametrize("warning", _warnings())
def test_each_warning_is_on_the_page(warning):
    if len(warning.replace(VALUE, "").split()) < 2:
        pytest.skip("only names what another text says")
    assert any(pattern(message).search(warning) for message in messages(OURS)), (
        f"Write into {PAGE.name} what {warning.replace(VALUE, '...')!r} means, and what to do."
    )


def test_a_message_that_nobody_says_is_seen():
    said = ["Rank \0 has \0 batches in each epoch, and"]
    assert any(pattern("Rank ... has ... batches").search(text) for text in said)
    assert not any(pattern("Rank ... has ... samples").search(text) for text in said)
