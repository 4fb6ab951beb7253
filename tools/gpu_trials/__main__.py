"""Tries on a machine without a GPU how the library starts on one that has some.

    python -m tools.gpu_trials            # scripts that select GPUs and scripts that do not; the doctor
    python -m tools.gpu_trials --nccl     # with a Horovod that is built with NCCL, which needs nvcc of CUDA 12

TensorFlow is that for GPUs. It finds a CUDA driver (tools/gpu_trials/driver) whose GPUs have their memory on the host
and whose kernels do nothing, so what TensorFlow registers, places and copies is real, and numbers that its kernels
compute are not. The environment is made once, in the cache of wheels. Takes some ten minutes on two cores. Prints what
became of each trial; the status is 1 if one failed.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator

from tools.gpu_trials import environment, trials
from tools.gpu_trials.environment import Environment


def main() -> int:
    """Runs the trials; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nccl", action="store_true", help="build Horovod with NCCL (HOROVOD_CUDA_HOME), and try it")
    parser.add_argument(
        "--environment", type=pathlib.Path, default=environment.default(), help="made if missing (default: %(default)s)"
    )
    options = parser.parse_args()
    try:
        made = environment.made(options.environment)
    except RuntimeError as error:
        sys.exit(str(error))
    if options.nccl:
        missing = environment.add_nccl(made)
        if missing is not None:
            sys.exit(missing)
    failed = 0
    for name, trial in _all(made, options.nccl):
        failed += not _passes(name, trial)
    return min(failed, 1)


def _all(made: Environment, nccl: bool) -> Iterator[tuple[str, Callable[[], None]]]:
    for trial in trials.TRIALS:
        yield str(trial), functools.partial(trials.try_script, made, trial)
    yield "the doctor with two GPUs", functools.partial(trials.try_doctor, made)
    if nccl:
        yield "collectives with NCCL", functools.partial(trials.try_nccl, made)


def _passes(name: str, trial: Callable[[], None]) -> bool:
    try:
        trial()
    except (AssertionError, KeyError, ValueError, subprocess.TimeoutExpired) as error:
        print(f"  FAILED  {name}\n{error}", flush=True)
        return False
    print(f"  ok      {name}", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
