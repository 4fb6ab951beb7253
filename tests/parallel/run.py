"""What one rank does: it runs the cases of one launch and records how each ended.

How to write a case. Put a function in a file `cases_SUITE.py` in this folder:

    from tests.parallel.cases import case

    @case(ranks=(2, 4), over=lambda ranks: [{"local_size": n} for n in (1, ranks)])
    def replicas_agree(local_size):
        hvd.init(local_size=local_size)
        ...
        assert digest == expected

- Every rank calls it with the same arguments. The case passes if it returns; any exception is a failure.
  `tests/test_parallel.py` shows each (number of ranks, case) as a test and prints the output of all ranks on failure.
- The ranks are started once for all cases, in all suites, that need the same number of ranks. Before each case the
  harness calls `hvd.init(local_size=P)` and `tf.keras.utils.set_random_seed(0)` and clears Keras's session; call
  `hvd.init(local_size=n)` for other grid shapes. If Horovod itself must fail or a rank must die, pass
  `launch=Launch(...)`: such a case has its own ranks and calls `hvd.init` itself.
- One number of ranks is in the quick tier: 4, or 2 in suites that train models; `quick=` changes this.
- All ranks wait for each other after each case. If one fails while others wait for it inside the case, the waiting
  ranks end the launch; a new launch runs the remaining cases. A case that exceeds its time limit counts as a hang, and
  the record shows the stack of each thread.
- Compare results on every rank (`number_of` and related functions need no collective); do not print.

While you work on a suite, run it without pytest (HOROVODRUN is .venv/bin/horovodrun):

    HOROVODRUN -np 2 --gloo .venv/bin/python -m tests.parallel.run keras --only replicas
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pathlib
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from tests.parallel import cases

GRACE = 15.0  # seconds the other ranks get to end a case in which one has failed, or to record its outcome
SET_UP = 300.0  # seconds to prepare a case; for the first case this includes the imports of the other ranks
_POLL = 0.2


def number_of() -> tuple[int, int]:
    """This rank and the number of ranks, as set by the launcher."""
    return int(os.environ.get("HOROVOD_RANK", "0")), int(os.environ.get("HOROVOD_SIZE", "1"))


def meet(name: str, others: Iterable[int]) -> None:
    """Waits until all ranks in `others` have called this too; works without Horovod, which may not be started yet."""
    from hvd_sparse.transport.launcher_store import Store

    store = Store.of_job(f"tests.{name}")
    assert store is not None, "such a case needs the store of horovodrun --gloo"
    store.put(number_of()[0], True)
    for other in others:
        store.get(other, SET_UP)


class Record:
    """Writes one JSON line per event of this rank: {"case", "event": "start" | "pass" | "fail", "text", "seconds",
    "processor"}, with the time taken and this rank's processor time.
    """

    def __init__(self, folder: pathlib.Path | None, rank: int):
        self._folder = folder
        self._rank = rank
        self._file: TextIO = sys.stdout if folder is None else open(folder / f"rank{rank}.jsonl", "a", encoding="utf8")

    def write(self, name: str, event: str, text: str = "", seconds: float = 0.0, processor: float = 0.0) -> None:
        line = {"case": name, "event": event, "text": text, "seconds": round(seconds, 3), "processor": processor}
        if self._folder is not None:
            self._file.write(json.dumps(line) + "\n")
        elif event != "start":
            self._file.write(f"{event} {name} ({seconds:.2f} s)\n{text}")
        self._file.flush()

    def mark_failed(self, number: int) -> None:
        """Tells the other ranks that this one takes no further part in a case."""
        if self._folder is not None:
            (self._folder / f"failed.{number}.{self._rank}").touch()

    def failed_ranks(self, number: int) -> list[str]:
        """The ranks that have failed in a case."""
        found = [] if self._folder is None else self._folder.glob(f"failed.{number}.*")
        return sorted(path.suffix[1:] for path in found)


class Watch:
    """A thread that ends the process if a case takes too long or waits for a failed rank.

    A rank whose outcome is recorded does not end the launch; the ranks that wait inside the case do. Otherwise Horovod
    would report its exit to them before they have recorded where they wait. Only if none waits is the meeting stuck.
    """

    def __init__(self, record: Record):
        self._record = record
        self._lock = threading.Lock()
        self._current: tuple[int, cases.Case, float, float] | None = None
        self._told = False
        threading.Thread(target=self._run, daemon=True).start()

    def begin(self, number: int, case: cases.Case, limit: float) -> None:
        """Starts the time limit, in seconds, of a case or of its preparation."""
        with self._lock:
            self._current, self._told = (number, case, limit, time.monotonic()), False

    def told(self) -> None:
        """Notes that the outcome is recorded; from now on only the wait for the other ranks is watched."""
        with self._lock:
            self._told = True

    def end(self) -> None:
        with self._lock:
            self._current = None

    def _run(self) -> None:
        bereaved_since: float | None = None
        while True:
            time.sleep(_POLL)
            with self._lock:
                if self._current is None:
                    bereaved_since = None
                    continue
                number, case, limit, since = self._current
                now = time.monotonic()
                failed = self._record.failed_ranks(number)
                bereaved_since = (bereaved_since or now) if failed and not self._told else None
                late = now - since > limit + (GRACE if self._told else 0)
                if late or (bereaved_since and now - bereaved_since > GRACE):
                    reason = f"still running after {limit} s" if late else f"waiting for rank {', '.join(failed)}"
                    self._give_up(case, reason, now - since)

    def _give_up(self, case: cases.Case, reason: str, seconds: float) -> None:
        if not self._told:
            self._record.write(case.name, "fail", f"HANG: {reason}; its threads:\n{_stacks()}", seconds)
        os._exit(3)


def _stacks() -> str:
    own = threading.get_ident()
    frames = {ident: frame for ident, frame in sys._current_frames().items() if ident != own}
    return "\n".join("".join(traceback.format_stack(frame)[-8:]) for frame in frames.values())


def run_shared(selected: Sequence[cases.Case], record: Record) -> None:
    """Runs cases one after another on ranks that are started and initialised once."""
    import tensorflow as tf

    from hvd_sparse import topology
    from hvd_sparse.transport.process_sets import DYNAMIC_VARIABLE

    os.environ[DYNAMIC_VARIABLE] = "1"  # cases have nodes of different sizes
    topology.init()
    gc.collect()
    gc.freeze()  # objects made by the imports: clearing Keras's session would scan them before each case
    topology.init(local_size=topology.world().size)
    watch = Watch(record)
    for number, case in enumerate(selected):
        watch.begin(number, case, SET_UP)
        tf.keras.backend.clear_session()
        tf.keras.utils.set_random_seed(0)
        # All begin together: a rank that is still preparing would be seen as waiting for one that has already failed.
        topology.world().allreduce(tf.constant(0), "max", f"ready.{number}")
        watch.begin(number, case, case.limit)
        if not _attempt(case, record):
            record.mark_failed(number)
        watch.told()
        topology.init(local_size=case.ranks)
        topology.world().allreduce(tf.constant(0), "max", f"case.{number}")
        watch.end()


def run_alone(case: cases.Case, record: Record) -> None:
    """Runs the only case of a launch; SIGTERM from the launcher is ignored, so that the rank can end by itself."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    watch = Watch(record)
    watch.begin(0, case, SET_UP)
    meet("begin", range(case.ranks))  # so that the library does not wait for other ranks' imports
    watch.begin(0, case, case.limit)
    _attempt(case, record)
    watch.end()


def _attempt(case: cases.Case, record: Record) -> bool:
    record.write(case.name, "start")
    started, processor = time.monotonic(), time.process_time()
    event, text = "pass", ""
    try:
        case.run()
    except Exception:
        event, text = "fail", traceback.format_exc()
    record.write(case.name, event, text, time.monotonic() - started, round(time.process_time() - processor, 3))
    return event == "pass"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Runs multi-rank cases on this rank.")
    parser.add_argument("suites", nargs="+", help="names of suites: cases_NAME.py")
    parser.add_argument("--only", default="", help="run the cases whose names contain this")
    parser.add_argument("--names", type=pathlib.Path, help="run the cases named in this JSON list")
    parser.add_argument("--results", type=pathlib.Path, help="folder for the records; default: print them")
    options: Any = parser.parse_args(arguments)
    rank, ranks = number_of()
    wanted = json.loads(options.names.read_text()) if options.names else None
    selected = [
        case
        for case in cases.load(options.suites)
        if case.ranks == ranks and options.only in case.name and (wanted is None or case.name in wanted)
    ]
    record = Record(options.results, rank)
    if len(selected) == 1 and selected[0].launch is not None:
        run_alone(selected[0], record)
    else:
        run_shared([case for case in selected if case.launch is None], record)


if __name__ == "__main__":
    main()
