"""One job by each launcher, on the same hosts; each returns what the job printed."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from tools.launchers import slurm
from tools.launchers.environment import ROOT
from tools.launchers.hosts import PORT, Hosts

LAUNCH = ROOT / "examples" / "launch"
LIMIT = 900.0  # seconds of a job, on a machine that is busy
QUIET = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "PYTHONUNBUFFERED": "1",
}
Job = Callable[[Hosts, pathlib.Path, Sequence[str], int], str]


class JobError(Exception):
    """A job that failed, with what it printed."""


def horovodrun(hosts: Hosts, python: pathlib.Path, command: Sequence[str], local: int) -> str:
    """horovodrun.sh on this machine, over ssh."""
    return _run(hosts, [], _over_ssh("horovodrun.sh", hosts, local, python, command))


def mpi(hosts: Hosts, python: pathlib.Path, command: Sequence[str], local: int) -> str:
    """mpirun.sh on this machine, over ssh."""
    return _run(hosts, [], _over_ssh("mpirun.sh", hosts, local, python, command))


def slurm_by_ssh(hosts: Hosts, python: pathlib.Path, command: Sequence[str], local: int) -> str:
    """slurm.sh on the first host, whose job starts the ranks by horovodrun."""
    return _by_slurm(hosts, ["--launcher", "horovodrun"], python, command, local)


def slurm_by_srun(hosts: Hosts, python: pathlib.Path, command: Sequence[str], local: int) -> str:
    """slurm.sh on the first host, whose job starts the ranks by srun and MPI."""
    return _by_slurm(hosts, ["--launcher", "srun"], python, command, local)


def ray(hosts: Hosts, python: pathlib.Path, command: Sequence[str], local: int) -> str:
    """ray_job.py on the first host of a Ray cluster."""
    address = f"{hosts.addresses[0]}:6379"
    program = [str(python.with_name("ray")), "start", "--disable-usage-stats", "--num-cpus", str(local)]
    sizes = ["--object-store-memory", str(100 * 2**20)]
    head = ["--head", "--include-dashboard=false", "--port", "6379", "--temp-dir", str(hosts.folder / "ray")]
    for host, own in enumerate(hosts.addresses):
        role = ["--address", address] if host else head
        _run(hosts, hosts.prefix(host), [*program, *sizes, "--node-ip-address", own, *role])
    job = [str(python), "-m", "examples.launch.ray_job", "--address", address, "--num-hosts", str(len(hosts.names))]
    return _run(hosts, hosts.prefix(0), [*job, "--slots-per-host", str(local), "--", *command[1:]])


JOBS: dict[str, tuple[Job, tuple[str, ...]]] = {  # name -> the job, and the programs it needs
    "horovodrun": (horovodrun, ()),
    "mpi": (mpi, ("mpirun",)),
    "slurm": (slurm_by_ssh, slurm.PROGRAMS),
    "srun": (slurm_by_srun, (*slurm.PROGRAMS, "mpirun")),
    "ray": (ray, ()),
}


def _over_ssh(name: str, hosts: Hosts, local: int, python: pathlib.Path, command: Sequence[str]) -> list[str]:
    where = ",".join(f"{address}:{local}" for address in hosts.addresses)
    key = ["--ssh-port", str(PORT), "--ssh-identity-file", str(hosts.key)]
    return [str(LAUNCH / name), "-H", where, *key, "--", str(python), *command]


def _by_slurm(hosts: Hosts, options: Sequence[str], python: pathlib.Path, command: Sequence[str], local: int) -> str:
    log = hosts.folder / "job.log"
    variables = {**slurm.start(hosts, local), "SBATCH_WAIT": "1", "SBATCH_OUTPUT": str(log)}
    size = ["--nodes", str(len(hosts.names)), "--slots-per-host", str(local)]
    submit = [str(LAUNCH / "slurm.sh"), *size, *options, "--", str(python), *command]
    try:
        said = _run(hosts, hosts.prefix(0), submit, variables)
    except JobError as failed:
        printed = log.read_text() if log.exists() else ""
        raise JobError(f"{failed}\n{printed}\nslurmd printed:\n{hosts.read('slurmd.log')}") from None
    return said + log.read_text()


def _run(
    hosts: Hosts, prefix: Sequence[str], command: Sequence[str], variables: Mapping[str, str] = MappingProxyType({})
) -> str:
    environment = {**os.environ, **QUIET, **variables, "PATH": hosts.path}
    # In a session of its own, so that it can be ended with all that it has started on this machine.
    with subprocess.Popen(
        [*prefix, *command],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as job:
        try:
            printed, _ = job.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            raise JobError(f"{_ended(job)}\nThe job was still running after {LIMIT:g} s.") from None
        except BaseException:
            _ended(job)
            raise
    if job.returncode:
        raise JobError(f"{printed}\nThe job ended with status {job.returncode}.")
    return printed


def _ended(job: subprocess.Popen[str]) -> str:
    """Ends a job with all that it has started on this machine; returns what it had printed."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return job.communicate(timeout=5.0)[0]
    return ""
