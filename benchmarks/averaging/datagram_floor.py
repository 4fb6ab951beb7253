"""Processor time of a rank's datagrams if only system calls touch them (native/datagram_floor.cc)."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

from benchmarks.machines.cluster import Cluster

_ROOT = pathlib.Path(__file__).parents[2]
_SOURCE = _ROOT / "benchmarks" / "native" / "datagram_floor.cc"
BYTES = 1472  # per datagram


def build(folder: pathlib.Path) -> pathlib.Path:
    """Compiles the program into a folder.

    Raises:
        RuntimeError: if there is no compiler.
    """
    compiler = shutil.which("c++")
    if compiler is None:
        raise RuntimeError("Expected the command c++: install a compiler (package g++).")
    program = folder / _SOURCE.stem
    flags = ["-O2", "-std=c++17", "-pthread", f"-I{_ROOT / 'ops'}"]
    subprocess.run([compiler, *flags, str(_SOURCE), "-o", str(program)], check=True)
    return program


def measure(program: pathlib.Path, cluster: Cluster, rate: float, datagrams: int, cut: bool) -> float:
    """Average processor seconds of a rank that sends and receives this many datagrams.

    Args:
        program: the program that `build` has made.
        cluster: a cluster within its `with` block, with one rank per node.
        rate: bits per second at which a rank sends.
        datagrams: number of datagrams per rank.
        cut: whether the kernel segments them (UDP_SEGMENT).

    Raises:
        RuntimeError: if a rank fails, or the network loses more than a tenth of them.
    """
    addresses = [cluster.address(node) for node in range(cluster.nodes)]
    words = [str(program), *map(str, (rate, datagrams, BYTES, int(cut)))]
    ranks = [
        subprocess.Popen(
            [*cluster.prefix(node), *words, str(node), *addresses],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for node in range(cluster.nodes)
    ]
    for rank in ranks:
        assert rank.stdout is not None
        rank.stdout.readline()  # it is listening
    told = [line.split() for line, _ in _begin(ranks)]
    if any(rank.returncode for rank in ranks) or any(len(each) != 3 for each in told):
        raise RuntimeError(f"the ranks of {program.name} ended with {[rank.returncode for rank in ranks]}")
    came = sum(int(each[0]) for each in told)
    if came < 0.9 * datagrams * len(ranks):
        raise RuntimeError(f"expected at least 90% of {datagrams * len(ranks)} datagrams to arrive, got {came}")
    return sum(float(seconds) for each in told for seconds in each[1:]) / len(ranks)


def _begin(ranks: list[subprocess.Popen]) -> list[tuple[str, str]]:
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write("\n")
        rank.stdin.flush()
    return [rank.communicate(timeout=300) for rank in ranks]
