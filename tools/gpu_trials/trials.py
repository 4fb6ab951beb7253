"""The trials: which GPUs each rank has after a script, what the doctor says, and whether collectives use NCCL."""

from __future__ import annotations

import collections
import json
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tools.gpu_trials.environment import Environment

LIMIT = 300.0  # seconds of a trial; four ranks on two cores start slowly
KEEPS_ALL = "each rank keeps all 2 GPUs"
TOO_FEW = "Expected a GPU for each rank"


class Trial(NamedTuple):
    """One job on a machine.

    Attributes:
        gpus: how many the machine has.
        ranks: the job's.
        script: what the ranks do; see `rank.py`.
        expected: the numbers of the GPUs that each rank computes on, or the error that every rank raises.
        variables: more of the environment.
        says: what rank 0 warns of.
    """

    gpus: int
    ranks: int
    script: str
    expected: Sequence[tuple[int, ...]] | str
    variables: dict[str, str] = {}  # noqa: RUF012 -- never changed
    says: str = ""

    def __str__(self) -> str:
        more = "".join(f", {name}={value or '(empty)'}" for name, value in self.variables.items())
        return f"{self.gpus} GPUs, {self.ranks} ranks, selects: {self.script}{more}"


SWITCHED_OFF = {"HVD_SPARSE_PIN_GPU": "0"}
WAYS = ("before", "after", "no")
TRIALS = (
    *(Trial(count, count, way, [(rank,) for rank in range(count)]) for count in (1, 2, 4) for way in WAYS),
    *(Trial(4, 2, way, [(3,), (1,)], {"CUDA_VISIBLE_DEVICES": "3,1"}) for way in WAYS),
    Trial(4, 1, "no", [(0,)]),
    Trial(4, 2, "no", [(2,), (2,)], {"CUDA_VISIBLE_DEVICES": "2"}),
    Trial(4, 2, "no", [(), ()], {"CUDA_VISIBLE_DEVICES": ""}),
    Trial(1, 2, "no", [(0,), (0,)]),
    Trial(2, 4, "no", TOO_FEW),
    Trial(2, 2, "other", [(1,), (0,)]),
    Trial(2, 2, "late", [(0, 1), (0, 1)], says=KEEPS_ALL),
    Trial(2, 2, "no", [(0, 1), (0, 1)], SWITCHED_OFF),
    Trial(2, 2, "after", [(0,), (1,)], SWITCHED_OFF),
)


def try_script(environment: Environment, trial: Trial) -> None:
    """Runs a job.

    Raises:
        AssertionError: if a rank has other GPUs than expected, or an error is not that of all ranks.
    """
    status, printed = _job(environment, trial.ranks, trial.script, TRIAL_GPUS=str(trial.gpus), **trial.variables)
    if isinstance(trial.expected, str):
        raised = len(set(re.findall(rf"^\[(\d+)\].*{trial.expected}", printed, re.MULTILINE)))
        _require(status != 0 and raised == trial.ranks, f"{raised} of {trial.ranks} ranks raised it:\n{printed}")
        return
    _require(status == 0, printed)
    by_rank = told(printed)
    total = trial.ranks * (trial.ranks - 1) / 2
    for rank, numbers in enumerate(trial.expected):
        names = [f"Trial GPU {number}" for number in numbers]
        _require(by_rank[rank]["gpus"] == names, f"rank {rank} has {by_rank[rank]['gpus']}, expected {names}")
        _require(by_rank[rank]["logical"] == len(names) and by_rank[rank]["sum"] == total, str(by_rank[rank]))
        _require(not trial.says or trial.says in printed, printed)


def try_doctor(environment: Environment) -> None:
    """What the doctor finds with two GPUs.

    Raises:
        AssertionError: if it finds something else.
    """
    done = _run(environment, [environment.python, "-m", "hvd_sparse.doctor", "--json"], TRIAL_GPUS="2")
    _require(done.returncode == 0, done.stdout)
    answer = json.loads(done.stdout[done.stdout.index("{") :])
    gpus = [f"Trial GPU {number}, compute capability 9.0" for number in range(2)]
    found, places = answer["found"], answer["places"]
    _require(found["tensorflow"]["gpus"] == gpus, str(found["tensorflow"]))
    _require(found["nvidia"]["driver_cuda"] == "13.0", str(found["nvidia"]))
    _require(places["model"] == "GPU" and not answer["obstacles"], str(answer))
    without = any("built without NCCL" in fault["text"] for fault in answer["losses"])
    _require(without == ("nccl" not in found["horovod"]["built_with"]), str(answer["losses"]))


def try_nccl(environment: Environment) -> None:
    """Whether collectives of tensors on the GPU stay there, through NCCL, and are right.

    Raises:
        AssertionError: if one does not, or is not.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        status, printed = _job(environment, 2, "nccl", TRIAL_GPUS="2", TRIAL_LOG=str(log))
        _require(status == 0, printed)
        by_rank = told(printed)
        logged = [file.read_text().splitlines() for file in Path(folder).glob("log.*")]
    for rank in range(2):
        for name, result in by_rank[rank]["collectives"].items():
            _require(result == {"device": "GPU:0", "right": True}, f"rank {rank}, {name}: {result}")
    calls = collections.Counter(line.split()[1] for lines in logged for line in lines if line.startswith("nccl "))
    missing = {"allreduce", "allgather", "broadcast"} - set(calls)
    _require(not missing, f"NCCL was not called for {sorted(missing)}, but for {dict(calls)}")


def told(printed: str) -> dict[int, dict[str, Any]]:
    """What each rank printed, by rank."""
    lines = re.findall(r'^\[\d+\]<stdout>:({"rank": .*})$', printed, re.MULTILINE)
    return {told["rank"]: told for told in map(json.loads, lines)}


def _job(environment: Environment, ranks: int, way: str, **variables: str) -> tuple[int, str]:
    launcher = [environment.python, "-m", "horovod.runner.launch", "-np", str(ranks), "--gloo"]
    done = _run(environment, [*launcher, environment.python, "-m", "tools.gpu_trials.rank", way], **variables)
    return done.returncode, done.stdout


def _run(environment: Environment, command: Sequence[str | Path], **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)),
        cwd=environment.sources,
        env={**environment.variables(), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
    )


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise[-2000:])
