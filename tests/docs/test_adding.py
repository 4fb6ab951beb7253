"""The examples of docs/adding.md, carried out in a copy of the sources: what they add passes the tests named there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest

from tests.docs import blocks
from tools.mutants import copies

PAGE = blocks.ROOT / "docs" / "adding.md"
# A file, where the block goes in it, and the block.
STEP = re.compile(
    r"^`(?P<path>[^`]+)`, (?:(?P<how>new|at its end)|(?P<place>after|before|in place of) `(?P<line>[^`]+)`):\n\n"
    r"```python\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
LIMIT = 1200.0  # seconds of a command, on a busy machine
COMMANDS = [block.text for block in blocks.of_page(PAGE) if block.language == "sh"]


def carried_out(text: str, found: re.Match) -> str:
    """The text of a file after a step."""
    if found["how"]:
        return text + found["text"]
    line = " ".join(found["line"].split()) if "import" in found["line"] else found["line"]
    assert f"\n{text}".count(f"\n{line}") == 1, f"{found['path']} has not once the line {line!r}"
    before, _, after = f"\n{text}".partition(f"\n{line}")
    parts = {
        "after": [before, "\n", line, "\n", found["text"].rstrip("\n"), after],
        "before": [before, "\n", found["text"], line, after],
        "in place of": [before, "\n", found["text"].rstrip("\n"), after],
    }
    return "".join(parts[found["place"]]).removeprefix("\n")


@pytest.fixture(scope="module")
def copy() -> Iterator[copies.Copy]:
    """The sources, with what is compiled, and with all that the page adds."""
    with copies.made(blocks.ROOT) as made:
        for found in STEP.finditer(PAGE.read_text()):
            path = made.folder / found["path"]
            assert path.exists() == (found["how"] != "new"), path
            path.write_text(carried_out(path.read_text() if path.exists() else "", found))
        yield made


def run(copy: copies.Copy, *words: str) -> str:
    ended = copy.run(words, LIMIT)
    assert ended.status == 0, ended.output[-9000:]
    return ended.output


def test_each_block_is_a_step_or_a_command():
    text = PAGE.read_text()
    assert len(STEP.findall(text)) + len(COMMANDS) == len(list(blocks.of_page(PAGE))) and len(COMMANDS) == 3


@pytest.mark.thorough
@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_added_passes_the_tests_that_are_named(copy, command):
    program, *words = shlex.split(command.replace("\\\n", " "))
    assert program == ".venv/bin/python"
    told = run(copy, *words)
    if "pytest" in words:
        passed = re.search(r"(\d+) passed", told)
        assert passed and int(passed[1]) > 5, told[-3000:]


@pytest.mark.thorough
def test_what_is_added_keeps_the_rules(copy):
    run(copy, "-m", "ruff", "check", "--quiet", ".")
    run(copy, "-m", "ruff", "format", "--quiet", "--check", ".")
    run(copy, "-m", "pytest", "-q", "-n", "0", "tests/test_layers.py", "tests/test_house_rules.py")
