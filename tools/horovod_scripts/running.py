"""Runs one script or test file on a number of ranks, and returns how it ended."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import pathlib
import re
import tempfile
from collections.abc import Iterator

from examples import photographs
from tools.horovod_scripts import changes, launching, recording
from tools.horovod_scripts.scripts import CONFIGURATION, PHOTOGRAPHS, Script, Tests
from tools.horovod_scripts.source import Source

LIMIT = 1200.0  # seconds per script
LIMIT_OF_TESTS = 3600.0  # seconds per test file
CLASSES = 1000  # ResNet-50's number of classes; folders without a photograph are classes, too
LEFT = "a rank ended in it, or waited in it for another one that did not come"
SHOWN = 1500  # characters shown from the end of a failed script's output


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a script or test ended: "passed", "failed", "skipped" or "absent", and its message."""

    outcome: str
    text: str = ""


def run_script(script: Script, source: Source, ranks: int) -> tuple[Outcome, list[changes.Applied]]:
    """Runs an example on a number of ranks, in a folder of its own."""
    if not source.has(script.path):
        return Outcome("absent"), []
    with tempfile.TemporaryDirectory(prefix="horovod_scripts.") as temporary:
        folder = pathlib.Path(temporary)
        applied = []
        for path in (script.path, *script.modules):
            text, made = changes.rewrite(source.read(path), script.changes)
            (folder / pathlib.Path(path).name).write_text(text, encoding="utf8")
            applied += made
        command = [
            *("-m", "tools.horovod_scripts.rank", pathlib.Path(script.path).name),
            *(_filled_in(argument, folder) for argument in script.arguments),
        ]
        with _beside(script, folder):
            ended = launching.run(ranks, command, folder, LIMIT)
    if ended.status == 0:
        return Outcome("passed"), applied
    reason = f"still running after {LIMIT:.0f} s" if ended.status is None else raised(ended.output)
    return Outcome("failed", reason), applied


def raised(output: str) -> str:
    """The line of the first exception in the ranks' output; if there is none, the end of the output."""
    found = re.search(r"^\[\d+\]<stderr>: ?((?:\w+\.)*\w*(?:Error|Exception)\b.*)$", output, flags=re.MULTILINE)
    return found[1] if found else output[-SHOWN:]


def _filled_in(argument: str, folder: pathlib.Path) -> str:
    if argument.startswith(PHOTOGRAPHS):
        _write_photographs(folder / "photographs")
    return argument.replace(PHOTOGRAPHS, str(folder / "photographs")).replace(
        CONFIGURATION, str(folder / "service.json")
    )


def _write_photographs(path: pathlib.Path) -> None:
    """Writes a few photographs into folders as ImageNet's, and empty folders for the other classes."""
    photographs.write_halves(path, train=20, held_out=20, side=224)
    for half in path.iterdir():
        for number in range(CLASSES - len(list(half.iterdir()))):
            (half / f"none{number:04d}").mkdir()


@contextlib.contextmanager
def _beside(script: Script, folder: pathlib.Path) -> Iterator[None]:
    """Runs a script's companion, if it has one, until the script has ended."""
    if not script.companion:
        yield
        return
    module, *arguments = script.companion
    with launching.started(1, ["-m", module, *(_filled_in(each, folder) for each in arguments)], folder):
        yield


def run_tests(tests: Tests, source: Source, ranks: int) -> tuple[dict[str, Outcome], list[changes.Applied]]:
    """Runs a test file on a number of ranks; if ranks end in the middle of a test, new ones run the remaining tests."""
    if not source.has(tests.path):
        return {}, []
    with tempfile.TemporaryDirectory(prefix="horovod_scripts.") as temporary:
        folder = pathlib.Path(temporary)
        source.copy_tests(folder)
        text, applied = changes.rewrite(source.read(tests.path), tests.changes)
        (folder / tests.path).write_text(text, encoding="utf8")
        outcomes: dict[str, Outcome] = {}
        again: set[str] = set()  # tests during which ranks ended, perhaps from an earlier failure: run once more
        for launch in itertools.count():
            records = folder / f"records{launch}"
            records.mkdir()
            (records / recording.DONE).write_text(json.dumps(sorted(outcomes)))
            command = [*("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tools.horovod_scripts.recording")]
            command += ["--rootdir", str(folder), tests.path]
            ended = launching.run(ranks, command, folder, LIMIT_OF_TESTS, {recording.FOLDER: str(records)})
            collected, found = read_records(records, ranks)
            left = {name for name, outcome in found.items() if outcome.text == LEFT and list(found)[0] != name} - again
            again |= left
            outcomes |= {name: outcome for name, outcome in found.items() if name not in left}
            if not found or not collected - set(outcomes):
                break
        if not outcomes:
            outcomes[tests.path] = Outcome("failed", ended.output[-SHOWN:])
    return outcomes, applied


def read_records(folder: pathlib.Path, ranks: int) -> tuple[set[str], dict[str, Outcome]]:
    """The tests that were collected, and how each test that was begun ended on all ranks together."""
    collected: set[str] = set()
    by_rank: list[dict[str, list[Outcome]]] = []
    for rank in range(ranks):
        seen: dict[str, list[Outcome]] = {}
        path = folder / f"rank{rank}.jsonl"
        for line in path.read_text(encoding="utf8").splitlines() if path.exists() else ():
            event = json.loads(line)
            if event["event"] == "collected":
                collected |= set(event["text"])
                continue
            events = seen.setdefault(event["test"], [])
            if event["event"] != "begun":
                events.append(Outcome(event["event"], event["text"]))
        by_rank.append(seen)
    names = dict.fromkeys(name for seen in by_rank for name in seen)
    return collected, {name: _together([seen.get(name) for seen in by_rank]) for name in names}


def _together(ranks: list[list[Outcome] | None]) -> Outcome:
    """Combines a test's outcomes on all ranks into one; None for a rank that never began it."""
    all_events = [event for events in ranks for event in events or ()]
    failed = next((event for event in all_events if event.outcome == "failed"), None)
    if failed:
        return failed
    if not all(ranks):
        return Outcome("failed", LEFT)
    skipped = [event for event in all_events if event.outcome == "skipped"]
    return skipped[0] if len(skipped) == len(all_events) else Outcome("passed")
