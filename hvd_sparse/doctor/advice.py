"""What follows from what was found: what stops training, what runs where, what is slow, and how to get the rest."""

from __future__ import annotations

from typing import Any, NamedTuple

from hvd_sparse import _dependencies
from hvd_sparse.doctor import software

_BUILD = "run `make build` in hvd_sparse's source, or install the package again"
_HOROVOD = _dependencies.HOW["horovod"]
_IMPORTED = {  # what may be broken -> how to get it; each imports those before it
    **_dependencies.HOW,
    "hvd_sparse": "run `make install PYTHON=ENV/bin/python` in hvd_sparse's source, which installs all that it needs",
}
_ON_THE_CPU = {  # what becomes of the work of a library for GPUs without it
    software.SELECTION: "gradients are copied to the CPU to be selected",
    software.FOR_GPUS[1]: "LARS and LAMB update weights on the CPU",
}


class Fault(NamedTuple):
    """Something that stops training or slows it.

    Attributes:
        text: what it is.
        remedy: what to do.
    """

    text: str
    remedy: str


def obstacles(found: dict[str, Any]) -> list[Fault]:
    """What keeps training from starting.

    Args:
        found: what `software.found` and `machine.found` return, together.
    """
    told = [*_of_packages(found), *_of_operations(found), *_of_driver(found)]
    if found["keras"]["backend"] != "tensorflow":
        told.append(Fault(f"Keras computes with {found['keras']['backend']}", "set KERAS_BACKEND=tensorflow"))
    if not {"gloo", "mpi"} & set(found["horovod"].get("built_with", ["gloo"])):
        told.append(Fault("Horovod was built with neither Gloo nor MPI, so ranks cannot meet", _HOROVOD))
    host = found["host"]
    if "error" in host:
        remedy = f'add "127.0.0.1 {host["name"]}" to /etc/hosts, or the network address if there are several hosts'
        told.append(Fault(f"the host's own name, {host['name']}, does not resolve ({host['error']})", remedy))
    return told


def _of_packages(found: dict[str, Any]) -> list[Fault]:
    """What is not found, and what fails first, as each needs those before it; Keras's backend can be the cause."""
    failed = [name for name in _IMPORTED if "error" in found[name]]
    first = None if found["keras"]["backend"] != "tensorflow" else next(iter(failed), None)
    return [
        Fault(f"{name} cannot be imported ({found[name]['error']})", found[name].get("remedy", _IMPORTED[name]))
        for name in failed
        if name == first or "remedy" in found[name]
    ]


def _of_operations(found: dict[str, Any]) -> list[Fault]:
    told = []
    version = found["tensorflow"].get("version")
    for name in (*software.OPERATIONS, *software.PLAIN):
        library = found["libraries"][name]
        if not library["there"]:
            told.append(Fault(f"{name} is not compiled", _BUILD))
        elif version and library["tensorflow"] not in (None, version):
            told.append(Fault(f"{name} is for TensorFlow {library['tensorflow']}, this is {version}", _BUILD))
        elif version and "error" in library:
            told.append(Fault(f"{name} cannot be loaded ({library['error']})", _BUILD))
    return told


def _of_driver(found: dict[str, Any]) -> list[Fault]:
    """A library that loads is used, also if its kernels then fail."""
    fault = found["gpu_fault"]
    if not fault:
        return []
    text = f"{software.SELECTION} cannot work with this GPU and driver ({fault}), so steps that select gradients fail"
    remedy = f"{_gpu_library_remedy(found)}; if the file is removed, {_ON_THE_CPU[software.SELECTION]}"
    return [Fault(text, remedy)]


def places(found: dict[str, Any]) -> dict[str, str]:
    """Where each part of a step runs, in words."""
    gpus = found["tensorflow"].get("gpus")
    selects = gpus and not _library_fault(found, software.SELECTION)
    return {
        "model": "GPU" if gpus else "CPU",
        "selection": "not at all" if found["gpu_fault"] else "GPU" if selects else "CPU",
        "exchange between nodes": _exchange(found),
        "exchange inside a node": _inside(found),
    }


def _exchange(found: dict[str, Any]) -> str:
    built = found["horovod"].get("built_with", [])
    if found["tensorflow"].get("gpus") and "nccl" in built:
        return "NCCL, between GPUs"
    ways = [f"{name} under {launcher}" for name, launcher in (("Gloo", "horovodrun"), ("MPI", "mpirun"))]
    return " or ".join(way for way in ways if way.split()[0].lower() in built) or "not at all"


def _inside(found: dict[str, Any]) -> str:
    memory = found["shared_memory"]
    if _exchange(found).startswith("NCCL"):
        return "NCCL, between GPUs"
    if memory["opens_others"] and not memory["switched_off"]:
        return "shared memory; all-reduce by Horovod"
    return "Horovod, through the loopback interface"


def losses(found: dict[str, Any]) -> list[Fault]:
    """What is slower than it could be on this machine, or in the way of several hosts."""
    return [*_of_gpus(found), *_of_memory(found), *_of_network(found), *_of_deaths(found)]


def _of_gpus(found: dict[str, Any]) -> list[Fault]:
    tensorflow = found["tensorflow"]
    if "error" in tensorflow:
        return []
    if not tensorflow["gpus"]:
        devices = found["nvidia"]["devices"]
        if not devices:
            return []
        built = "is built for CPUs" if not tensorflow["cuda"] else "does not find CUDA's libraries, or may not use them"
        text = f"TensorFlow sees none of the machine's GPUs ({devices}): it {built}"
        remedy = "install tensorflow[and-cuda] in place of tensorflow-cpu; look at nvidia-smi and CUDA_VISIBLE_DEVICES"
        return [Fault(text, remedy)]
    faults = {name: _library_fault(found, name) for name in _ON_THE_CPU}
    remedy = _gpu_library_remedy(found)
    told = [Fault(f"{fault}, so {_ON_THE_CPU[name]}", remedy) for name, fault in faults.items() if fault]
    if "nccl" not in found["horovod"].get("built_with", []):
        text = "Horovod was built without NCCL, so gradients are copied to the CPU to be exchanged"
        told.append(Fault(text, f"install NCCL and a CUDA toolkit, set HOROVOD_GPU_OPERATIONS=NCCL, and {_HOROVOD}"))
    return told


def _library_fault(found: dict[str, Any], name: str) -> str | None:
    library = found["libraries"][name]
    if not library["there"]:
        return f"{name} is not compiled"
    return f"{name} cannot be loaded ({library['error']})" if "error" in library else None


def _gpu_library_remedy(found: dict[str, Any]) -> str:
    newest = found["nvidia"]["driver_cuda"]
    wanted = f"11.8 to {newest}, the newest for this driver," if newest else "11.8 or newer"
    return f"put nvcc of CUDA {wanted} on the PATH, and {_BUILD}"


def _of_memory(found: dict[str, Any]) -> list[Fault]:
    memory = found["shared_memory"]
    if memory["switched_off"]:
        return [Fault("HVD_SPARSE_SHARED_MEMORY=0 sends what ranks of a node exchange through Horovod", "unset it")]
    if not memory["opens_others"]:
        remedy = "start all ranks of a host as one user, in one container or with a common process namespace (--pid)"
        return [Fault("processes may not open each other's memory, so ranks of a node exchange by Horovod", remedy)]
    return []


def _of_network(found: dict[str, Any]) -> list[Fault]:
    host = found["host"]
    address = host.get("address", "")
    if not address.startswith("127."):
        return []
    remedy = "before a job of several hosts, give the name the host's network address in /etc/hosts on each"
    return [Fault(f"the host's own name resolves to {address}, which other hosts cannot reach", remedy)]


def _of_deaths(found: dict[str, Any]) -> list[Fault]:
    if found["horovod"].get("survives_deaths", True):
        return []
    text = (
        "Horovod was not built by hvd_sparse, so the death of a rank may end all others by a signal, without an error"
    )
    return [Fault(text, _HOROVOD)]
