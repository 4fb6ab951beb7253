"""Starts ranks on a Ray cluster with Horovod's runner for Ray (horovod.ray.RayExecutor), with Gloo.

    python -m examples.launch.ray_job --num-hosts 2 --slots-per-host 4 -- examples.keras_digits --epochs 20

Every rank runs a module, as `python -m` would. The folder from which it is imported must be on all hosts, under the
same path. --address is that of ray.init: "auto" for the cluster that this machine belongs to, "local" for a new one on
this machine. With --dry-run the script checks that the module exists and, if there is a cluster, that its resources
suffice, and prints placement, variables and call.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import runpy
import sys
from typing import Any

HANDED_ON = ("HVD_SPARSE_", "HOROVOD_", "DATACACHE_", "DATA_DIR", "NCCL_", "TF_", "OMP_", "KERAS_")


def run_module(module: str, arguments: list[str], folder: str) -> None:
    """Runs in each worker: `python -m MODULE ARGUMENTS` from a folder."""
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def placement(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of RayExecutor: the same number of workers on each host, as hvd_sparse requires."""
    if options.num_hosts < 1 or options.slots_per_host < 1:
        raise ValueError(
            f"Expected at least one host with one worker, got --num-hosts {options.num_hosts} and --slots-per-host "
            f"{options.slots_per_host}."
        )
    return {
        "num_hosts": options.num_hosts,
        "num_workers_per_host": options.slots_per_host,
        "cpus_per_worker": options.cpus_per_worker,
        "use_gpu": options.gpus_per_worker > 0,
        "gpus_per_worker": options.gpus_per_worker or None,
    }


def variables(options: argparse.Namespace) -> dict[str, str]:
    """The variables to set for all ranks: Horovod's from the options, and this process's that matter for training."""
    handed_on = {name: value for name, value in os.environ.items() if name.startswith(HANDED_ON)}
    return {
        **handed_on,
        "HOROVOD_FUSION_THRESHOLD": str(options.fusion_threshold_mb * 2**20),
        "HOROVOD_CYCLE_TIME": f"{options.cycle_time_ms:g}",
    }


def lacking(nodes: list[dict[str, Any]], wanted: dict[str, Any]) -> str | None:
    """A message that says what a cluster lacks for a placement; None if nothing."""
    cpus = wanted["num_workers_per_host"] * wanted["cpus_per_worker"]
    gpus = wanted["num_workers_per_host"] * (wanted["gpus_per_worker"] or 0)
    fit = [
        node
        for node in nodes
        if node["Alive"] and node["Resources"].get("CPU", 0) >= cpus and node["Resources"].get("GPU", 0) >= gpus
    ]
    if len(fit) >= wanted["num_hosts"]:
        return None
    return (
        f"{len(fit)} of {len(nodes)} hosts of the cluster have {cpus} cores and {gpus} GPUs; {wanted['num_hosts']} are "
        "needed. Use fewer hosts, or fewer --slots-per-host."
    )


def start(options: argparse.Namespace, wanted: dict[str, Any]) -> None:
    """Starts the workers, runs the module on all of them, and stops them."""
    import ray
    from horovod.ray import RayExecutor

    settings = RayExecutor.create_settings(
        timeout_s=options.start_timeout,
        nics=set(options.network_interfaces.split(",")) if options.network_interfaces else None,
    )
    executor = RayExecutor(settings, use_current_placement_group=False, **wanted)
    executor.start(extra_env_vars=variables(options))
    try:
        executor.run(run_module, args=[options.module, options.arguments, os.getcwd()])
    finally:
        executor.shutdown()
        ray.shutdown()


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--num-hosts", type=int, default=1, help="default: %(default)s")
    made.add_argument("--slots-per-host", type=int, default=1, help="ranks per host (default: %(default)s)")
    made.add_argument("--cpus-per-worker", type=int, default=1, help="cores per rank (default: %(default)s)")
    made.add_argument("--gpus-per-worker", type=int, default=0, help="GPUs per rank (default: %(default)s)")
    made.add_argument("--address", default="auto", help="of the Ray cluster (default: %(default)s)")
    made.add_argument("--network-interfaces", help="comma-separated (default: found by Horovod)")
    made.add_argument("--start-timeout", type=int, default=120, help="in seconds (default: %(default)s)")
    made.add_argument("--fusion-threshold-mb", type=int, default=1, help="default: %(default)s, as set by hvd.init")
    made.add_argument("--cycle-time-ms", type=float, default=1.0, help="default: %(default)s")
    made.add_argument("--dry-run", action="store_true", help="check the job, and print what would run")
    made.add_argument("module", help="Python module that every rank runs")
    made.add_argument("arguments", nargs="*", help="arguments of the module")
    return made


def _nodes(address: str) -> list[dict[str, Any]] | str:
    """The hosts of the cluster, or why they cannot be listed."""
    if importlib.util.find_spec("ray") is None:
        return "Ray is not installed: pip install ray."
    import ray

    try:
        ray.init(address=address, ignore_reinit_error=True, log_to_driver=True)
    except ConnectionError as error:
        return f"No Ray cluster responds at {address}: {error}"
    return ray.nodes()


def main() -> None:
    """Checks the job, and starts the ranks or prints what would be started."""
    options = parser().parse_args()
    if importlib.util.find_spec(options.module) is None:
        sys.exit(f"Python cannot find module {options.module} from {os.getcwd()}.")
    try:
        wanted = placement(options)
    except ValueError as error:
        sys.exit(str(error))
    if options.dry_run and options.address == "local":
        nodes: list[dict[str, Any]] | str = "A cluster on this machine alone would be started."
    else:
        nodes = _nodes(options.address)
    missing = nodes if isinstance(nodes, str) else lacking(nodes, wanted)
    if options.dry_run:
        arguments = ", ".join(f"{name}={value!r}" for name, value in wanted.items())
        print(f"# {options.num_hosts * options.slots_per_host} ranks on {options.num_hosts} hosts")
        print(f"# {missing or 'the cluster has room for them'}")
        print(f"RayExecutor({arguments}).start(extra_env_vars={json.dumps(variables(options))})")
        print(f"python -m {options.module} {' '.join(options.arguments)}".rstrip())
        return
    if missing:
        sys.exit(missing)
    start(options, wanted)


if __name__ == "__main__":
    main()
