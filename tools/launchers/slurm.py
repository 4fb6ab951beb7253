"""A Slurm cluster of the hosts: munged and slurmctld on the first, slurmd on each."""

from __future__ import annotations

import os
import subprocess
import time

from tools.launchers.hosts import Hosts, answered, find

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "sinfo")
_START = 60.0  # seconds until all nodes are idle
# A namespace's own /sys has no control groups, which slurmd looks for even if nothing uses them.
_WITH_CGROUPS = ["sh", "-c", 'mount -t tmpfs cgroup /sys/fs/cgroup && exec "$0" "$@"']
_SETTINGS = """ClusterName=box
SlurmctldHost={first}({address})
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
StateSaveLocation={folder}/slurmctld
SlurmdSpoolDir={folder}/slurmd-%n
TmpFS={folder}/tmp-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def start(hosts: Hosts, local: int) -> dict[str, str]:
    """Starts the cluster, which ends with the hosts; returns the variables that Slurm's commands need.

    Raises:
        RuntimeError: with what the servers printed, if it does not start.
    """
    folder = hosts.folder
    nodes = [
        f"NodeName={name} NodeAddr={address} CPUs={local} State=UNKNOWN\n"
        for name, address in zip(hosts.names, hosts.addresses, strict=True)
    ]
    for name in ("slurmctld", *(f"tmp-{name}" for name in hosts.names)):  # each host needs a /tmp of its own
        (folder / name).mkdir()
    settings = _SETTINGS.format(first=hosts.names[0], address=hosts.addresses[0], folder=folder)
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    (folder / "slurm.conf").write_text(settings + "".join(nodes))
    variables = {"SLURM_CONF": str(folder / "slurm.conf")}
    _start_munge(hosts)
    control = _server(hosts, 0, "slurmctld", ["-D"], variables)
    answered(hosts.addresses[0], 6817, control, lambda: hosts.read("slurmctld.log"))
    for host, name in enumerate(hosts.names):
        _server(hosts, host, "slurmd", ["-D", "-N", name], variables, _WITH_CGROUPS)
    _wait_until_idle(hosts, variables)
    return variables


def _start_munge(hosts: Hosts) -> None:
    key = hosts.folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    files = (
        ("key-file", "munge.key"),
        ("socket", "munge.socket"),
        ("pid-file", "munge.pid"),
        ("seed-file", "munge.seed"),
    )
    options = [f"--{option}={hosts.folder / name}" for option, name in files]
    hosts.start(0, [find("munged") or "munged", "--foreground", "--force", *options], "munged.log")
    until = time.monotonic() + _START
    while not (hosts.folder / "munge.socket").exists():
        if time.monotonic() > until:
            raise RuntimeError(f"munged did not start. It printed:\n{hosts.read('munged.log')}")
        time.sleep(0.05)


def _server(
    hosts: Hosts,
    host: int,
    program: str,
    options: list[str],
    variables: dict[str, str],
    prefix: list[str] | None = None,
) -> subprocess.Popen:
    setting = [f"{name}={value}" for name, value in variables.items()]
    return hosts.start(host, [*(prefix or []), "env", *setting, find(program) or program, *options], f"{program}.log")


def _wait_until_idle(hosts: Hosts, variables: dict[str, str]) -> None:
    until = time.monotonic() + _START
    command = [*hosts.prefix(0), "sinfo", "--noheader", "--Node", "--format", "%N %T"]
    while True:
        states = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True).stdout.split()
        if states[1::2] == ["idle"] * len(hosts.names):
            return
        if time.monotonic() > until:
            said = hosts.read("slurmctld.log") + hosts.read("slurmd.log")
            raise RuntimeError(f"Slurm's nodes are {' '.join(states)}. The servers printed:\n{said}")
        time.sleep(0.2)
