"""tools/mutants: which faults it draws, inserts and tests; on our own texts and a repository of our own."""

from __future__ import annotations

import concurrent.futures
import json
import pathlib
import subprocess
import threading

import pytest

from tools.mutants import baseline, copies, equal, judging, planting, report, rooms
from tools.mutants.__main__ import ROOT, STORE, judge_all
from tools.mutants.faults import Fault, between
from tools.mutants.judged import Judged
from tools.mutants.judging import EQUAL, LATER, NOBODY, OWN, TEST, TEST_ALL, Stage
from tools.mutants.listed import LISTED
from tools.mutants.listed_native import NATIVE

FAULT = Fault("the sum", "lars", "lars/sums.py", 0, "a + b", "a - b")

# ---- faults ----


@pytest.mark.parametrize("fault", [*LISTED, *NATIVE], ids=lambda fault: fault.name)
def test_what_is_listed_can_be_planted(fault):
    text = (ROOT / fault.path).read_text()
    planted = fault.planted(text)
    assert planted != text and fault.breaks.endswith(".") and fault.room in rooms.ROOMS
    assert len(planted) == len(text) - len(fault.was) + len(fault.becomes) and fault.becomes in planted
    compile(planted if fault.path.endswith(".py") else "", fault.path, "exec")


def test_names_and_changes_are_unique():
    assert len({fault.name for fault in (*LISTED, *NATIVE)}) == len({fault.key for fault in (*LISTED, *NATIVE)})
    assert len(LISTED) + len(NATIVE) == len({fault.name for fault in (*LISTED, *NATIVE)})


def test_a_fault_is_refused_where_its_text_is_missing_or_not_alone():
    for text in ("a - b", "a + b, a + b"):
        with pytest.raises(ValueError, match="does not contain exactly once"):
            FAULT.planted(text)
    with pytest.raises(ValueError, match="at line 2"):
        between("it", "lars", "x.py", "a\nb\n", "a\nc\n").planted("b\na\n")


def test_a_fault_is_the_lines_that_differ():
    fault = between("it", "lars", "x.py", "a\nb\nb\nc\n", "a\nb\nd\nc\n")
    assert (fault.line, fault.was, fault.becomes) == (3, "b\n", "d\n")
    assert fault.planted("a\nb\nb\nc\n") == "a\nb\nd\nc\n"
    assert fault.difference("a\nb\nb\nc\n") == "-b\n+d" and fault.place("a\nb\nb\nc\n") == "x.py:3"
    removed = between("it", "lars", "x.py", "a\nb\n", "b\n")
    assert removed.planted("a\nb\n") == "b\n"


# ---- drawing ----


def test_the_same_seed_draws_the_same_and_another_one_others():
    few, many, others = planting.draw(ROOT, 1, 2), planting.draw(ROOT, 1, 3), planting.draw(ROOT, 2, 3)
    assert many[:2] == few and not set(many) & set(others)
    for fault in (*many, *others):
        text = (ROOT / fault.path).read_text()
        assert fault.planted(text) != text
        assert fault.path in rooms.modules(ROOT, rooms.ROOMS[fault.room])


def test_the_modules_to_draw_from_can_be_chosen():
    chosen = planting.draw(ROOT, 1, 6, ["lars/*", "hvd_sparse/keras/tracked.py"])
    assert {fault.room for fault in chosen} == {"lars", "keras"}
    assert all(fault.path.startswith("lars/") or fault.path == "hvd_sparse/keras/tracked.py" for fault in chosen)


PLANTED = [
    ("x = a + b\n", "x = a - b\n"),
    ("if a < b:\n    x()\n", "if a <= b:\n    x()\n"),
    ("x = a[1]\n", "x = a[ 0]\n"),
    ("for x in y:\n    break\n", "for x in []:\n    break\n"),
    ("x = True\n", "x = False\n"),
    ("@property\ndef f(a):\n    a()\n", "def f(a):\n    a()\n"),
]


@pytest.mark.parametrize("text, changed", PLANTED)
def test_a_change_of_what_is_computed_is_planted(text, changed):
    assert changed in [planting.planted(text, each) for each in planting.plantings(text)]


LEFT_OUT = [
    "def f(x: A | B = y) -> A | None:\n    x()\n",
    "x: A | B = y\n",
    "raise E(1 + n)\n",
    "assert a < b\n",
    "x = f'{a + b}'\n",
    "warnings.warn(a + b, stacklevel=2)\n",
    "_log.warning(a, 1)\n",
    "@functools.cache\ndef f(x):\n    x()\n",
    "@abc.abstractmethod\ndef f(x):\n    x()\n",
    "@dataclasses.dataclass(frozen=True)\nclass C:\n    x: int\n",
    "SECONDS = 2\n",
    "_LOOK = 0.5  # seconds between two looks\n",
    "wait(timeout=3)\n",
    "zip(a, b, strict=True)\n",
]


@pytest.mark.parametrize("text", LEFT_OUT)
def test_what_changes_no_result_is_left_out(text):
    assert planting.plantings(text) == []


def test_equality_is_not_made_identity():
    changed = {planting.planted("x = a == b\n", each) for each in planting.plantings("x = a == b\n")}
    assert "x = a != b\n" in changed and not any(" is " in each for each in changed)


def test_what_is_no_program_is_not_planted():
    text = "def f(a, /, b):\n    x()\n"
    changed = {planting.planted(text, each) for each in planting.plantings(text)}
    assert changed == {None, "def f(a, *, b):\n    x()\n"}


def test_equal_programs_are_known_by_file_and_text():
    known = equal.EQUAL[0]
    fault = Fault("it", "lars", known.path, 7, f"  {known.was}\n", f"  {known.becomes}\n")
    assert equal.reason(fault) == known.reason
    assert equal.reason(FAULT) is None
    assert all(each.was in (ROOT / each.path).read_text() and each.reason.endswith(".") for each in equal.EQUAL)


# ---- rooms ----


@pytest.mark.parametrize("name", rooms.ROOMS)
def test_each_room_has_tests_and_each_pattern_finds_something(name):
    room = rooms.ROOMS[name]
    own, others = rooms.own_tests(ROOT, room), rooms.other_tests(ROOT, room)
    assert own and others and not set(own) & set(others)
    assert all(rooms.found(ROOT, (pattern,)) for pattern in (*room.tests, *room.modules, *room.beyond))


# ---- running ----

TESTS = {
    "lars/__init__.py": "",
    "lars/sums.py": "def add(a, b):\n    return a + b\n\n\ndef wait():\n    return None\n",
    "tests/test_own.py": "def test_nothing():\n    assert True\n",
    "tests/test_broken.py": "def test_fails_anyhow():\n    assert False\n\n\ndef test_nothing():\n    assert True\n",
    "tests/test_sums.py": "from lars.sums import add\n\n\ndef test_sum():\n    assert add(1, 2) == 3\n",
    "tests/test_waits.py": "from lars.sums import wait\n\n\ndef test_wait():\n    wait()\n",
    "tests/test_once.py": (
        "import pathlib\n\nfrom lars.sums import add\n\n\n"
        "def test_fails_once():\n    mark = pathlib.Path('mark')\n    again = mark.exists()\n    mark.touch()\n"
        "    assert again or add(1, 2) == 3\n"
    ),
    "tests/test_never.py": "import pytest\n\n\n@pytest.mark.thorough\ndef test_nothing():\n    assert True\n",
    "pytest.ini": "[pytest]\nmarkers = thorough\n",
}


@pytest.fixture
def repository(tmp_path):
    """A repository whose quick tests detect a wrong sum, and one of whose tests always fails."""
    folder = tmp_path / "repository"
    for path, text in TESTS.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    return folder


def test_a_copy_is_what_is_imported_and_the_checkout_stays(repository):
    with copies.made(repository) as copy:
        copy.check_imports()
        assert copy.plant(FAULT) is None
        assert "a - b" in (copy.folder / FAULT.path).read_text()
        ended = copy.run(["-c", "import lars.sums; print(lars.sums.add(3, 1))"], 60)
        assert (ended.status, ended.output) == (0, "2\n")
    assert "a + b" in (repository / FAULT.path).read_text() and not copy.folder.exists()


def test_a_copy_that_is_not_imported_is_refused(repository):
    with copies.made(repository) as copy:
        copy.environment["PYTHONPATH"] = str(repository)
        with pytest.raises(RuntimeError, match="is not what is imported"):
            copy.check_imports()


@pytest.mark.thorough
def test_what_hangs_is_ended_with_all_that_it_started(repository):
    """The child has its own session, as ranks have."""
    start = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE, "
    start += "start_new_session=True); print('started', flush=True); sys.stdin = open('/dev/zero'); sys.stdin.read()"
    with copies.made(repository) as copy:
        assert copy.run(["-c", "import time; time.sleep(100)"], 0.2).status is None
        ended = copy.run(["-c", start], 5)
        assert ended == (None, "started\n")
        marked = [pathlib.Path(each) for each in pathlib.Path("/proc").glob("[0-9]*/environ")]
        assert not any(str(copy.folder).encode() in _content(path) for path in marked)


def _content(path):
    try:
        return path.read_bytes()
    except OSError:  # it has ended, or is another user's
        return b""


STAGES = [
    Stage(OWN, "quick", ["tests/test_own.py", "tests/test_broken.py"]),
    Stage(TEST, "quick", ["tests/test_sums.py"]),
    Stage(TEST_ALL, "thorough", ["tests/test_never.py"]),
]


@pytest.mark.thorough
def test_stages_stop_at_the_first_that_sees_the_fault(repository, tmp_path, capsys):
    record = judging.judge(repository, FAULT, STAGES, baseline.Baseline(repository, tmp_path / "baseline.json"))
    assert (record["seen by"], record["test"]) == (TEST, "tests/test_sums.py::test_sum")
    assert len(record["seconds"]) == 2 and record["place"] == "lars/sums.py:2"
    assert record["difference"] == "-    return a + b\n+    return a - b"
    assert "is skipped: tests/test_broken.py::test_fails_anyhow" in capsys.readouterr().out


def test_nobody_waits_for_tests_that_he_does_not_need(repository, tmp_path, monkeypatch):
    known, began, ends, ran = baseline.Baseline(repository, tmp_path / "b"), threading.Event(), threading.Event(), []

    def run(tier, files, keys):
        ran.append(files)
        if files == ["tests/test_own.py"]:
            began.set()
            assert ends.wait(60)
        known._known.update({keys[file]: {"seconds": 1.0, "failed": []} for file in files})

    monkeypatch.setattr(known, "_run", run)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first = pool.submit(known.of, "quick", ["tests/test_own.py"])
        assert began.wait(60)
        second = pool.submit(known.of, "quick", ["tests/test_own.py"])
        assert list(known.of("quick", ["tests/test_sums.py"])) == ["tests/test_sums.py"]
        ends.set()
        assert first.result(60) == second.result(60)
    assert ran == [["tests/test_own.py"], ["tests/test_sums.py"]]


@pytest.mark.thorough
def test_what_no_stage_sees_survives_and_the_baseline_is_kept(repository, tmp_path, capsys):
    path = tmp_path / "baseline.json"
    for _ in range(2):
        record = judging.judge(repository, FAULT, [STAGES[0], STAGES[2]], baseline.Baseline(repository, path))
        assert (record["seen by"], record["test"], len(record["seconds"])) == (NOBODY, "", 2)
    assert capsys.readouterr().out.count("Without a fault") == 2  # one per tier


def test_by_its_own_tests_alone_a_fault_that_they_miss_is_told_later(tmp_path, monkeypatch):
    asked = []

    def judge(root, fault, planned, known):
        asked.extend(stage.seer for stage in planned)
        return {"seen by": NOBODY if fault is FAULT else OWN}

    monkeypatch.setattr(judging, "judge", judge)
    judged = judging.judge_of(ROOT, {}, baseline.Baseline(ROOT, tmp_path / "b"), own_alone=True)
    assert judged(FAULT)["seen by"] == LATER and asked == [OWN]
    assert judged(LISTED[0])["seen by"] == OWN


@pytest.mark.thorough
def test_what_fails_once_and_not_again_has_not_seen_the_fault(repository, tmp_path):
    once = Stage(OWN, "quick", ["tests/test_own.py", "tests/test_once.py"])
    record = judging.judge(repository, FAULT, [once, STAGES[1]], baseline.Baseline(repository, tmp_path / "b"))
    assert (record["seen by"], record["test"]) == (TEST, "tests/test_sums.py::test_sum")


@pytest.mark.thorough
def test_a_hang_is_seen(repository, tmp_path, monkeypatch):
    monkeypatch.setattr(judging, "LEAST", 6.0)
    hang = Fault("a hang", "lars", "lars/sums.py", 0, "return None", "while True: pass")
    record = judging.judge(
        repository, hang, [Stage(OWN, "quick", ["tests/test_waits.py"])], baseline.Baseline(repository, tmp_path / "b")
    )
    assert (record["seen by"], record["test"]) == (OWN, "timeout")


def test_own_tests_come_before_others_and_cheap_ones_first():
    room = rooms.ROOMS["costs"]
    own, *rest = judging.stages(ROOT, room, {"quick": {"tests/costs/test_costs.py": 9.0}})
    assert own == Stage(OWN, "quick", ["tests/tuning/test_planner.py", "tests/costs/test_costs.py"])
    all_tests = (TEST_ALL, "thorough")
    assert [(stage.seer, stage.tier) for stage in rest] == [(TEST, "quick"), all_tests, all_tests]


def test_a_run_that_was_stopped_goes_on(tmp_path):
    judged = []

    def judge(fault):
        if fault.name == "stops" and "stops" not in judged:
            judged.append(fault.name)
            raise KeyboardInterrupt
        judged.append(fault.name)
        return {"name": fault.name, "room": "lars", "seen by": OWN, "test": "t", "seconds": [1.0]}

    (tmp_path / "x.py").write_text("first stops last")
    faults = [Fault(name, "lars", "x.py", 0, name, "") for name in ("first", "stops", "last")]
    path = tmp_path / "judged.jsonl"
    with pytest.raises(KeyboardInterrupt):
        judge_all(faults, {}, judge, Judged(tmp_path, path), 1)
    store = Judged(tmp_path, path)
    known = store.of(faults)
    assert known[faults[0].key]["place"] == "x.py:1" and known[faults[0].key]["difference"]
    found = judge_all(faults, known, judge, store, 1)
    assert [record["name"] for record in found] == ["first", "stops", "last"] and judged.count("first") == 1
    assert len(store.of(faults)) == len(path.read_text().splitlines()) == 3
    (tmp_path / "x.py").write_text("first stops last, or not")
    assert store.of(faults) == {}


def test_what_is_kept_tells_of_listed_faults():
    kept = [json.loads(line) for line in STORE.read_text().splitlines()]
    assert all(line["seen by"] in (OWN, TEST, TEST_ALL, NOBODY) for line in kept)
    assert Judged(ROOT, STORE).of([*LISTED, *NATIVE])


# ---- the table ----


def test_the_table_counts_what_each_sees_of_what_is_a_fault():
    seers = [OWN] * 17 + [TEST, TEST_ALL, EQUAL, EQUAL]
    same = {"room": "lars", "test": "t", "difference": "-a\n+b"}
    found = [{"name": f"fault {n}", "seen by": seer, "place": f"x.py:{n}", **same} for n, seer in enumerate(seers)]
    assert report.shares(found) == {OWN: 17 / 19, TEST: 18 / 19, TEST_ALL: 1.0}
    assert report.is_enough(found)
    found.append({**found[0], "seen by": NOBODY, "name": "survivor"})
    assert not report.is_enough(found)
    text = "\n".join(report.lines(found))
    assert [line.split() for line in text.splitlines() if line.startswith("all ")] == [
        ["all", "22", "2", "17", "18", "19", "1"]
    ]
    assert "x.py:0 (survivor) is seen by nobody" in text and text.count("-a\n+b") == 2
