"""Starts ranks on Kubernetes with the MPI operator (kubeflow.org/v2beta1): fills in, checks and applies mpijob.yaml.

    python -m examples.launch.mpijob -np 16 --slots-per-host 8 --image registry/hvd-sparse:1 \\
        --data-claim imagenet -- \\
        python -m examples.imagenet --recipe recommended --data /mnt/data --cache-dir /var/tmp/datacache

With --dry-run the job is checked and printed, ready for `kubectl apply -f -`. Options that Horovod has, too, have the
same names as in horovodrun.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
from typing import Any

import yaml

TEMPLATE = pathlib.Path(__file__).with_name("mpijob.yaml")
HOSTFILE = "/etc/mpi/hostfile"  # written by the operator
QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?([EPTGMk]i?|m)?")  # a resource quantity in Kubernetes's notation
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # RFC 1123


def make_job(options: argparse.Namespace) -> dict[str, Any]:
    """The job that the options describe; raises ValueError if they are invalid."""
    workers, left = divmod(options.num_proc, options.slots_per_host)
    if options.slots_per_host < 1 or workers < 1 or left:
        raise ValueError(
            f"-np {options.num_proc} is not a positive multiple of --slots-per-host {options.slots_per_host}: all "
            "workers need the same number of ranks."
        )
    job = yaml.safe_load(TEMPLATE.read_text())
    launcher, worker = (job["spec"]["mpiReplicaSpecs"][role] for role in ("Launcher", "Worker"))
    job["metadata"]["name"] = options.name
    if options.namespace:
        job["metadata"]["namespace"] = options.namespace
    job["spec"]["slotsPerWorker"] = options.slots_per_host
    worker["replicas"] = workers
    worker["template"]["metadata"]["labels"]["app"] = options.name
    spec = worker["template"]["spec"]
    chosen = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]
    chosen["labelSelector"]["matchLabels"]["app"] = options.name
    for container in (*launcher["template"]["spec"]["containers"], *spec["containers"]):
        container["image"] = options.image
        container["workingDir"] = options.working_dir
    launcher["template"]["spec"]["containers"][0].update(command=_command(options), env=_variables(options))
    _set_resources(spec["containers"][0]["resources"]["limits"], options)
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    volumes["data"]["persistentVolumeClaim"]["claimName"] = options.data_claim
    volumes["memory"]["emptyDir"]["sizeLimit"] = options.shm_size
    if options.local_dir:
        volumes["cache"]["hostPath"]["path"] = options.local_dir
    else:
        volumes["cache"].pop("hostPath")
        volumes["cache"]["emptyDir"] = {}
    return job


def _command(options: argparse.Namespace) -> list[str]:
    """The launcher's command; Gloo's ranks are started over ssh, with the keys that the operator made."""
    interface = ["--network-interfaces", options.network_interfaces] if options.network_interfaces else []
    tuning = [
        "--start-timeout",
        str(options.start_timeout),
        "--fusion-threshold-mb",
        str(options.fusion_threshold_mb),
        "--cycle-time-ms",
        f"{options.cycle_time_ms:g}",
    ]
    ranks = ["-np", str(options.num_proc), "--hostfile", HOSTFILE, "--gloo"]
    return ["horovodrun", *ranks, *interface, *tuning, *options.command]


def _variables(options: argparse.Namespace) -> list[dict[str, str]]:
    """The variables that horovodrun passes on to all ranks: the mount points of the data and of the cache's levels."""
    places = {
        "DATA_DIR": "/mnt/data",
        "DATACACHE_LOCAL_DIR": "/var/tmp/datacache",
        "DATACACHE_MEMORY_DIR": "/dev/shm",
    }
    return [{"name": name, "value": value} for name, value in places.items()]


def _set_resources(limits: dict[str, Any], options: argparse.Namespace) -> None:
    limits["cpu"], limits["memory"] = options.cpu, options.memory
    if options.gpus_per_host:
        limits["nvidia.com/gpu"] = options.gpus_per_host
    else:
        limits.pop("nvidia.com/gpu")


def faults(job: Any) -> list[str]:
    """The faults that the operator and Kubernetes would find in a job; empty if there are none."""
    found = []

    def expect(holds: bool, text: str) -> None:
        if not holds:
            found.append(text)

    expect(job.get("apiVersion") == "kubeflow.org/v2beta1", "apiVersion is not kubeflow.org/v2beta1")
    expect(job.get("kind") == "MPIJob", "kind is not MPIJob")
    name = job.get("metadata", {}).get("name", "")
    expect(
        bool(NAME.fullmatch(name)),
        f"metadata.name is not a valid Kubernetes name: {name!r} (lowercase letters, digits, -)",
    )
    replicas = job.get("spec", {}).get("mpiReplicaSpecs", {})
    expect(set(replicas) == {"Launcher", "Worker"}, f"mpiReplicaSpecs has {sorted(replicas)}, not Launcher and Worker")
    for role, replica in replicas.items():
        expect(replica.get("replicas", 0) >= 1, f"{role} has no replicas")
        spec = replica.get("template", {}).get("spec", {})
        expect(bool(spec.get("containers")), f"{role} has no containers")
        volumes = [volume["name"] for volume in spec.get("volumes", [])]
        expect(len(set(volumes)) == len(volumes), f"{role} has several volumes with the same name")
        for volume in spec.get("volumes", []):
            expect(len(volume) == 2, f"{role}: volume {volume['name']} needs one source, has {sorted(volume)[1:]}")
        for container in spec.get("containers", []):
            found.extend(f"{role}: {fault}" for fault in _container_faults(container, volumes))
    return found


def _container_faults(container: dict[str, Any], volumes: list[str]) -> list[str]:
    found = [f"a container has no {key}" for key in ("name", "image") if not container.get(key)]
    words = (*container.get("command", ()), *(each["value"] for each in container.get("env", ())))
    found += [f"{word!r} in the command or environment is not a string" for word in words if not isinstance(word, str)]
    for mount in container.get("volumeMounts", ()):
        if mount["name"] not in volumes:
            found.append(f"{mount['mountPath']} mounts volume {mount['name']}, which does not exist")
    for kind, amounts in container.get("resources", {}).items():
        for what, amount in amounts.items():
            if not QUANTITY.fullmatch(str(amount)):
                found.append(f"{kind} of {what}: {amount!r} is not a quantity such as 8, 500m or 64Gi")
    return found


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("-np", "--num-proc", type=int, required=True, help="total number of ranks")
    made.add_argument("--slots-per-host", type=int, default=8, help="ranks per worker (default: %(default)s)")
    made.add_argument("--image", required=True, help="container image with Python, Horovod, hvd_sparse, ssh and sshd")
    made.add_argument("--name", default="hvd-sparse", help="of the job (default: %(default)s)")
    made.add_argument("--namespace", help="of the job (default: kubectl's)")
    made.add_argument("--working-dir", default="/work", help="of the command, in the image (default: %(default)s)")
    made.add_argument("--gpus-per-host", type=int, help="GPUs per worker; 0 for none (default: --slots-per-host)")
    made.add_argument("--cpu", default="60", help="cores per worker (default: %(default)s)")
    made.add_argument("--memory", default="400Gi", help="per worker, including /dev/shm (default: %(default)s)")
    made.add_argument("--shm-size", default="200Gi", help="of /dev/shm (default: %(default)s)")
    made.add_argument(
        "--data-claim", default="data", help="persistent volume claim, mounted at /mnt/data (default: %(default)s)"
    )
    made.add_argument(
        "--local-dir",
        default="/var/tmp/datacache",
        help="cache directory on the node's disk; if empty, the cache is deleted with the pod (default: %(default)s)",
    )
    made.add_argument("--network-interfaces", help="comma-separated (default: found by Horovod)")
    made.add_argument("--start-timeout", type=int, default=120, help="in seconds (default: %(default)s)")
    made.add_argument("--fusion-threshold-mb", type=int, default=1, help="default: %(default)s, as set by hvd.init")
    made.add_argument("--cycle-time-ms", type=float, default=1.0, help="default: %(default)s")
    made.add_argument("--dry-run", action="store_true", help="check and print the job without applying it")
    made.add_argument("command", nargs="+", help="command for every rank, after --")
    return made


def main() -> None:
    """Prints the job, or passes it to kubectl."""
    options = parser().parse_args()
    if options.gpus_per_host is None:
        options.gpus_per_host = options.slots_per_host
    try:
        job = make_job(options)
    except ValueError as error:
        sys.exit(str(error))
    wrong = faults(job)
    if wrong:
        sys.exit("The job is invalid: " + "; ".join(wrong))
    text = yaml.safe_dump(job, sort_keys=False)
    if options.dry_run:
        print(text, end="")
        return
    if shutil.which("kubectl") is None:
        sys.exit("kubectl was not found: install it, or pass the output of --dry-run to `kubectl apply -f -`.")
    sys.exit(subprocess.run(["kubectl", "apply", "-f", "-"], input=text, text=True).returncode)


if __name__ == "__main__":
    main()
