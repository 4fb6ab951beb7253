"""Trains the same model by each launcher, on two network namespaces as hosts, and compares what came of it.

    python -m tools.launchers                      # horovodrun, mpi, slurm (with horovodrun), srun and ray
    python -m tools.launchers slurm ray --local 2

Each job is started by a launch file of examples/launch, with the real servers: sshd, munged, slurmctld, slurmd, Ray's.
They run in the namespaces and end with them, however this program ends. It needs root and the packages iproute2,
openssh-server, openmpi-bin, libopenmpi-dev, munge and slurm-wlm; Ray and a Horovod with MPI are installed into an
environment of their own. The status is 1 if a job failed or its metrics differ.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import signal
import sys

from tools.launchers import environment, hosts
from tools.launchers.jobs import JOBS, JobError

WITHOUT_ENVIRONMENT = {"horovodrun"}
METRICS = {"loss": r"\bloss: ([0-9.]+)", "test accuracy": r"test accuracy ([0-9.]+)"}


def metrics(printed: str) -> dict[str, str]:
    """The last value of each metric in what a job printed.

    Raises:
        JobError: if one is missing.
    """
    found = {name: re.findall(pattern, printed) for name, pattern in METRICS.items()}
    missing = [name for name, values in found.items() if not values]
    if missing:
        raise JobError(f"{printed}\nThe job printed no {' and no '.join(missing)}.")
    return {name: values[-1] for name, values in found.items()}


def run(name: str, python: pathlib.Path, local: int, epochs: int) -> dict[str, str]:
    """The metrics of a job on hosts of its own.

    Raises:
        JobError: if the job fails.
        RuntimeError: if hosts or servers cannot be made.
    """
    job, programs = JOBS[name]
    missing = hosts.unavailable(*programs)
    if missing is not None:
        raise RuntimeError(missing)
    with hosts.made(2, local) as both:
        return metrics(job(both, python, ["-m", "examples.keras_digits", "--epochs", str(epochs)], local))


def agree(results: dict[str, dict[str, str]]) -> bool:
    """Whether all launchers came to the same metrics."""
    return len({tuple(found.values()) for found in results.values()}) <= 1


def table(results: dict[str, dict[str, str]]) -> list[str]:
    """The metrics by launcher, and a line that says whether they are the same."""
    lines = [f"{'launcher':12s}" + "".join(f"{name:>16}" for name in METRICS)]
    lines += [f"{name:12s}" + "".join(f"{found[metric]:>16}" for metric in METRICS) for name, found in results.items()]
    if len(results) > 1:
        lines.append("The metrics are the same." if agree(results) else "The metrics DIFFER.")
    return lines


def main() -> int:
    """Runs the jobs one after another; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("launchers", nargs="*", metavar="LAUNCHER", help=f"any of {', '.join(JOBS)} (default: all)")
    parser.add_argument("--local", type=int, default=1, help="ranks on each host (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=3, help="default: %(default)s")
    parser.add_argument(
        "--environment", type=pathlib.Path, default=environment.default(), help="made if missing (default: %(default)s)"
    )
    options = parser.parse_args()
    unknown = [name for name in options.launchers if name not in JOBS]
    if unknown:
        parser.error(f"expected launchers from {', '.join(JOBS)}, got {unknown[0]}")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    results: dict[str, dict[str, str]] = {}
    failed = []
    for name in options.launchers or JOBS:
        try:
            own = name not in WITHOUT_ENVIRONMENT
            python = environment.python(options.environment.absolute()) if own else pathlib.Path(sys.executable)
            results[name] = run(name, python, options.local, options.epochs)
            print(f"ok      {name}", flush=True)
        except (JobError, RuntimeError) as error:
            failed.append(name)
            print(f"FAILED  {name}\n{error}", flush=True)
    print("\n".join(table(results)))
    return 1 if failed or not agree(results) else 0


if __name__ == "__main__":
    sys.exit(main())
