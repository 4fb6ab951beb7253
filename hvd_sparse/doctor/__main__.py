"""Says what is installed, what runs where, what stops training or slows it, and how to get the rest.

python -m hvd_sparse.doctor
horovodrun -np 4 -H a:2,b:2 python -m hvd_sparse.doctor     rank 0 prints what it finds on its host

The exit status is 1 where training could not start; then other ranks, too, print why.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hvd_sparse.doctor import advice, machine, software

_RANKS = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")  # what launchers tell a process


def examine() -> dict[str, Any]:
    """What was found and what follows from it, as JSON-serialisable values."""
    found: dict[str, Any] = {**software.found(), **machine.found()}
    loads = found["libraries"][software.SELECTION]
    asks = found["tensorflow"].get("gpus") and loads["there"] and "error" not in loads
    found["gpu_fault"] = software.gpu_fault() if asks else None
    return {
        "found": found,
        "places": advice.places(found),
        "obstacles": [fault._asdict() for fault in advice.obstacles(found)],
        "losses": [fault._asdict() for fault in advice.losses(found)],
    }


def page(told: dict[str, Any]) -> str:
    """What `examine` returns, as text."""
    found = told["found"]
    parts = {
        "Software": _software(found),
        "Native libraries": {name: _library(known) for name, known in found["libraries"].items()},
        "Machine": _machine(found),
        "What runs where": told["places"],
    }
    lines = [line for title, rows in parts.items() for line in _table(title, rows)]
    lines += _faults("Training cannot start", told["obstacles"]) or ["Training can start."]
    return "\n".join([*lines, *_faults("What could be better", told["losses"])])


def _table(title: str, rows: Mapping[str, str]) -> Iterator[str]:
    yield title
    width = max(map(len, rows))
    yield from (f"  {name:{width}}  {text}" for name, text in rows.items())
    yield ""


def _faults(title: str, faults: Sequence[Mapping[str, str]]) -> list[str]:
    lines = [f"  - {fault['text']}.\n    {fault['remedy'][:1].upper()}{fault['remedy'][1:]}." for fault in faults]
    return [f"{title}:", *lines] if lines else []


def _software(found: dict[str, Any]) -> dict[str, str]:
    python, tensorflow, keras, horovod = (found[name] for name in ("python", "tensorflow", "keras", "horovod"))
    cuda = tensorflow.get("cuda")
    return {
        "Python": f"{python['version']}, {python['path']}",
        "TensorFlow": _known(tensorflow, f"for CUDA {cuda}" if cuda else "for CPUs"),
        "Keras": _known(keras, f"computes with {keras.get('backend')}"),
        "Horovod": _known(horovod, f"built with {', '.join(horovod.get('built_with', [])) or 'nothing'}"),
        "hvd_sparse": _known(found["hvd_sparse"], "can be imported"),
    }


def _known(package: dict[str, Any], more: str) -> str:
    return package["error"] if "error" in package else f"{package['version']}, {more}"


def _library(known: dict[str, Any]) -> str:
    if not known["there"]:
        return "not compiled"
    built_for = known["tensorflow"] and f", for TensorFlow {known['tensorflow']}"
    return f"{known.get('error', 'loads')}{built_for or ''}"


def _machine(found: dict[str, Any]) -> dict[str, str]:
    host, memory, limits = found["host"], found["memory"], found["limits"]
    driver = found["nvidia"]["driver_cuda"]
    return {
        "GPUs": "; ".join(found["tensorflow"].get("gpus", [])) or "none that TensorFlow sees",
        "NVIDIA driver": f"for CUDA {driver} and older" if driver else "none",
        "host": f"{host['name']}, {host.get('address') or host['error']}",
        "interfaces": ", ".join(_interface(*each) for each in found["interfaces"].items() if each[1]["address"]),
        "links": "`horovodrun ... python -m hvd_sparse.planner` measures them",
        "memory": f"{_size(memory['bytes'])}, limit of control groups {_size(memory['limit'])}",
        "limits": ", ".join(f"{name} {_size(limit) if name != 'NOFILE' else limit}" for name, limit in limits.items()),
        "/dev/shm": _size(found["shared_memory"]["bytes"]),
        "other processes": "memory can be opened" if found["shared_memory"]["opens_others"] else "memory is closed",
    }


def _interface(name: str, known: dict[str, Any]) -> str:
    return f"{name} {known['address']}" + (f" ({known['megabits']} Mbit/s)" if known["megabits"] else "")


def _size(count: int | None) -> str:
    if count is None:
        return "none"
    return f"{count / 2**30:.3g} GiB" if count >= 2**30 else f"{count / 2**20:.3g} MiB"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m hvd_sparse.doctor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    told = examine()
    obstacles = _faults(f"Training cannot start on {told['found']['host']['name']}", told["obstacles"])
    if all(os.environ.get(name, "0") == "0" for name in _RANKS):
        print(json.dumps(told, indent=2) if options.json else page(told), flush=True)
    elif obstacles:
        print("\n".join(obstacles), file=sys.stderr, flush=True)
    return 1 if obstacles else 0


if __name__ == "__main__":
    sys.exit(main())
