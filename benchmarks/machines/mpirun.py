"""Ranks of a cluster in a box through Open MPI: mpirun stays outside and reaches the nodes by an agent instead of ssh.

Ranks on one node communicate in shared memory, those of different nodes over their shaped links.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence

_GRACE = 10.0  # seconds that mpirun gets to stop its ranks

# mpirun calls it as it would ssh: AGENT ADDRESS COMMAND..., the command for a shell. The name of the host is a node's
# own, as Open MPI takes ranks with equal ones for neighbours.
_AGENT = """#!/bin/sh
namespace={prefix}n$((${{1##*.}} - 1))
shift
exec ip netns exec "$namespace" unshare --uts sh -c 'hostname "$0" && eval "$1"' "$namespace" "$*"
"""


def unavailable() -> str | None:
    """Why ranks cannot be started this way here, with the remedy; None if they can."""
    if shutil.which("mpirun") is None:
        return "The launcher mpirun needs Open MPI: install the package openmpi-bin."
    if shutil.which("unshare") is None:
        return "The launcher mpirun needs the command unshare: install the package util-linux."
    return None


def write_agent(folder: pathlib.Path, prefix: str) -> pathlib.Path:
    """Writes the agent for namespaces PREFIXn0, PREFIXn1, ... of addresses that end in 1, 2, ...; returns its path."""
    agent = folder / "agent"
    agent.write_text(_AGENT.format(prefix=prefix))
    agent.chmod(0o755)
    return agent


def arguments(agent: pathlib.Path, addresses: Sequence[str], local: int, command: Sequence[str]) -> list[str]:
    """The whole command line, from mpirun on.

    Args:
        agent: of `write_agent`; Open MPI's own files go into its folder.
        addresses: of the nodes, in order, all in one /24 network.
        local: ranks on each.
        command: what every rank runs.
    """
    network = f"{addresses[0].rpartition('.')[0]}.0/24"
    settings = {
        "plm": "rsh",
        "plm_rsh_agent": str(agent),
        "plm_rsh_no_tree_spawn": "1",
        "orte_tmpdir_base": str(agent.parent),
        "oob_tcp_if_include": network,
        "pml": "ob1",
        "btl": "self,vader,tcp",
        "btl_tcp_if_include": network,
        "mpi_yield_when_idle": "1",  # the nodes share this machine's cores, which Open MPI cannot know
    }
    return [
        *("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"),
        *(word for name, value in settings.items() for word in ("--mca", name, value)),
        *("-np", str(len(addresses) * local), "-H", ",".join(f"{address}:{local}" for address in addresses)),
        *command,
    ]


def run(
    prefix: str,
    addresses: Sequence[str],
    local: int,
    command: Sequence[str],
    environment: Mapping[str, str],
    limit: float | None,
) -> int:
    """Runs a command on all ranks; what they print passes through. When one rank fails, mpirun stops the others.

    Args:
        prefix: of the namespaces' names.
        addresses: of the nodes, in order.
        local: ranks on each.
        command: program and arguments.
        environment: added to that of every rank; the agent hands on what mpirun has.
        limit: seconds after which all ranks are stopped.

    Returns:
        The exit status of mpirun: that of the rank which failed first.

    Raises:
        RuntimeError: if there is no mpirun.
        TimeoutError: if the limit was reached.
    """
    reason = unavailable()
    if reason is not None:
        raise RuntimeError(reason)
    with tempfile.TemporaryDirectory() as folder:
        line = arguments(write_agent(pathlib.Path(folder), prefix), addresses, local, command)
        with subprocess.Popen(line, env={**os.environ, **environment}, stdin=subprocess.DEVNULL) as started:
            try:
                return started.wait(limit)
            except subprocess.TimeoutExpired:
                raise TimeoutError(f"The ranks were still running after {limit:g} s and were stopped.") from None
            finally:
                _stop(started)


def _stop(started: subprocess.Popen) -> None:
    started.terminate()
    try:
        started.wait(_GRACE)
    except subprocess.TimeoutExpired:
        started.kill()
