"""The examples of docs/adding.md, carried out in a copy of the sources: what they add passes the tests named there."""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.docs import blocks

PAGE = blocks.ROOT / "docs" / "adding.md"
# A file, where the block goes in it, and the block.
STEP = re.compile(
    r"^`(?P<path>[^`]+)`, (?:(?P<how>new|at its end)|(?P<place>after|before|in place of) `(?P<line>[^`]+)`):\n\n"
    r"```python\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
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
def copy(tmp_path_factory) -> pathlib.Path:
    """The sources, with what is compiled, and with all that the page adds."""
    folder = tmp_path_factory.mktemp("copy")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=blocks.ROOT, capture_output=True, check=True, text=True)
    native = [path.relative_to(blocks.ROOT) for path in blocks.ROOT.glob("*/_*") if path.suffix in (".so", ".json")]
    for name in [*listed.stdout.rstrip("\0").split("\0"), *map(str, native)]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(blocks.ROOT / name, folder / name, follow_symlinks=False)
    for found in STEP.finditer(PAGE.read_text()):
        path = folder / found["path"]
        assert path.exists() == (found["how"] != "new"), path
        path.write_text(carried_out(path.read_text() if path.exists() else "", found))
    return folder


def run(folder: pathlib.Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    ended = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-3000:]
    return ended.stdout


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
