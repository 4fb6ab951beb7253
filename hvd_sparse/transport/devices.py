"""The GPU of each rank: the one whose number is that of the rank on its host, as in Horovod's scripts.

TensorFlow fixes its GPUs and how it allocates their memory when it is initialised, which its first operation does. It
accepts the same choice once more, so a script may also choose after `init`.
"""

from __future__ import annotations

import collections
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import horovod.tensorflow as _horovod
import tensorflow as tf

from hvd_sparse import ops

SWITCH_VARIABLE = "HVD_SPARSE_PIN_GPU"
_GPU_LIBRARY = Path(ops.__file__).with_name("_cuda.so")
_log = logging.getLogger(__name__)


def selectable() -> int:
    """The number of GPUs of which `pin` selects one; 0 if it leaves them as they are."""
    gpus = _not_chosen()
    return len(gpus) if len(gpus) > 1 else 0


def pin(local_rank: int) -> None:
    """Restricts TensorFlow to one GPU, and has it allocate GPU memory as it is needed; call it before any operation.

    Nothing changes if HVD_SPARSE_PIN_GPU=0 or the script has already selected GPUs; if CUDA_VISIBLE_DEVICES leaves one
    GPU, it is not selected again.

    Args:
        local_rank: this process's number on its host. If it is too large, no GPU is selected: see `fault`.
    """
    gpus = _not_chosen()
    try:
        for gpu in gpus:
            if tf.config.experimental.get_memory_growth(gpu) is None:
                tf.config.experimental.set_memory_growth(gpu, True)
        if 1 < len(gpus) and local_rank < len(gpus):
            tf.config.set_visible_devices(gpus[local_rank], "GPU")
    except RuntimeError:  # TensorFlow is initialised
        if len(gpus) > 1 and local_rank == 0:
            _log.warning(
                "TensorFlow was initialised before hvd.init, so each rank keeps all %d GPUs of its host: call hvd.init "
                "before any operation of TensorFlow, or select a GPU before.",
                len(gpus),
            )


def require_enough(places: Sequence[dict[str, Any]]) -> None:
    """Raises ValueError if ranks do not have a GPU each on a host with some; see `fault`."""
    found = fault(places)
    if found:
        raise ValueError(found)


def fault(places: Sequence[dict[str, Any]]) -> str | None:
    """What is wrong with the GPUs of ranks, in words; None if each has one.

    Args:
        places: for each world rank its `host`, and as `gpus` what `selectable` returned there.
    """
    ranks = collections.Counter(place["host"] for place in places)
    few = {place["host"]: place["gpus"] for place in places if 0 < place["gpus"] < ranks[place["host"]]}
    if not few:
        return None
    counts = ", ".join(f"{host}: {ranks[host]} ranks and {gpus} GPUs" for host, gpus in few.items())
    return (
        f"Expected a GPU for each rank, got {counts}: start at most as many ranks on a host as it has GPUs. To have "
        f"ranks share GPUs, or to compute on CPUs, select GPUs before hvd.init, or set {SWITCH_VARIABLE}=0 or "
        'CUDA_VISIBLE_DEVICES="".'
    )


def has_gpu() -> bool:
    """Whether TensorFlow computes on a GPU."""
    return bool(tf.config.get_visible_devices("GPU"))


def reads_gpus() -> bool:
    """Whether Horovod sends from a GPU's memory to others: it was built with NCCL, and TensorFlow has a GPU."""
    return has_gpu() and bool(_horovod.nccl_built())


def selects_on_gpu() -> bool:
    """Whether gradients are selected on a GPU: there is one, and the library for it was compiled."""
    return has_gpu() and _GPU_LIBRARY.exists()


def _not_chosen() -> list[Any]:
    """All GPUs, if the script has not chosen among them."""
    gpus = tf.config.list_physical_devices("GPU")
    chosen = tf.config.get_visible_devices("GPU") != gpus or any(map(tf.config.get_logical_device_configuration, gpus))
    return [] if chosen or os.environ.get(SWITCH_VARIABLE) == "0" else gpus
