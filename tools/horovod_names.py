"""Writes docs/horovod_names.md: where each public name of Horovod 0.28.1 for TensorFlow and Keras is found here.

    .venv/bin/python -m tools.horovod_names            # writes the page
    .venv/bin/python -m tools.horovod_names --print    # prints it

The names are those in dir() of Horovod's modules that do not begin with an underscore, except `ACCIDENTAL`. A name is
present if hvd_sparse has it in the same place; tests/horovod_api/test_horovod_names.py fails if one is missing.
"""

from __future__ import annotations

import argparse
import importlib
import pathlib
from typing import Any

import horovod
import horovod.tensorflow.keras

import hvd_sparse
from hvd_sparse.horovod_api import names

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "horovod_names.md"

# Horovod's modules -> where their names are in hvd_sparse.
PLACES = {
    "horovod.tensorflow": "hvd_sparse",
    "horovod.tensorflow.keras": "hvd_sparse",
    "horovod.tensorflow.keras.callbacks": "hvd_sparse.callbacks",
    "horovod.tensorflow.compression": "hvd_sparse.compression",
    "horovod.tensorflow.elastic": "hvd_sparse.elastic",
    "horovod.tensorflow.keras.elastic": "hvd_sparse.elastic",
}

_OTHER_PACKAGE = "a package that Horovod's module imports"
_INSIDE = "a module in which Horovod defines what it exports elsewhere; import the name from hvd_sparse"
# Names that dir() shows in Horovod's modules but that are not Horovod's, and what they are.
ACCIDENTAL = {
    "K": "Keras's backend, which Horovod's module imports",
    "functions": _INSIDE,
    "gradient_aggregation": _INSIDE,
    "gradient_aggregation_eager": _INSIDE,
    "inspect": _OTHER_PACKAGE,
    "is_version_greater_equal_than": "a comparison of version numbers, which Horovod's modules import",
    "keras": "in horovod.tensorflow a module whose names are in hvd_sparse itself; elsewhere a package",
    "mpi_ops": _INSIDE,
    "ops": "an internal module of TensorFlow, which Horovod's module imports",
    "os": _OTHER_PACKAGE,
    "run_fn": "the implementation of horovod.tensorflow.elastic.run",
    "sync_batch_norm": _INSIDE,
    "tf": _OTHER_PACKAGE,
    "util": _INSIDE,
    "version": _OTHER_PACKAGE,
    "warnings": _OTHER_PACKAGE,
}
# Names that horovod.tensorflow.elastic shows but that belong to horovod.tensorflow, where they are listed.
FROM_ABOVE = {
    "horovod.tensorflow.elastic": {
        "broadcast_object",
        "broadcast_object_fn",
        "broadcast_variables",
        "init",
        "rank",
        "shutdown",
    },
}

_KERAS_ORDER = (
    "Arguments have `horovod.tensorflow`'s order; a string as the second one is taken as the name, as for Keras."
)
_OBJECTS = (
    "Sent as JSON and raw arrays, so that reading executes no code: numbers, strings, bytes, arrays, tensors, and "
    "lists, tuples, sets and dictionaries of them. `pickled=True` sends as Horovod does. `session` has no effect."
)
_SCATTER = (
    "An all-to-all and a sum in rank order, because Horovod's own sometimes gives wrong sums through Gloo. float16 is "
    "added as float32."
)
# Names that differ from Horovod's in behaviour that a user may notice.
DIFFERENCES: dict[str, str] = {
    "DistributedGradientTape": (
        "Also takes a recipe (`aggregator=`), and reports NaN and infinities on all ranks. Gradients are fused in "
        "buckets if a recipe selects, so `groups` and `num_groups` have no effect."
    ),
    "DistributedOptimizer": (
        "Also takes a recipe (`aggregator=`), and reports NaN and infinities on all ranks. The order of arguments "
        "is `horovod.tensorflow.keras`'s; `horovod.tensorflow`'s is recognised. An optimizer in use is rejected."
    ),
    "Adasum": "With MPI only; without it, the call that uses it raises an error.",
    "SyncBatchNormalization": (
        "Equals one process with all batches: ranks are weighted by batch size. Pass options by name, without `renorm`."
    ),
    "add_process_set": "Ranks that do not exist are rejected.",
    "allgather": "Also bfloat16, uint32 and uint64; numbers, lists, arrays and Keras's variables.",
    "allgather_object": _OBJECTS,
    "allreduce": f"Also bfloat16 (as float32); numbers, lists, arrays and Keras's variables. {_KERAS_ORDER}",
    "alltoall": "Also bfloat16, uint32 and uint64; numbers, lists, arrays and Keras's variables.",
    "broadcast": "Also bfloat16, uint32 and uint64; numbers, lists, arrays and Keras's variables.",
    "broadcast_": "Variables are paired by position, not by name; `name` has no effect.",
    "broadcast_object": _OBJECTS,
    "broadcast_object_fn": f"Works without a session. {_OBJECTS}",
    "broadcast_variables": (
        "Variables are paired by position, not by name; their shapes are compared first, and a difference raises an "
        "error on all ranks. Also Keras's variables and all numeric dtypes. `inplace` has no effect."
    ),
    "elastic": "Planned changes also hand over residuals, and slots that the exchange keeps ([here](elastic.md)).",
    "grouped_allgather": "dtypes may be mixed.",
    "grouped_allreduce": "dtypes may be mixed.",
    "grouped_reducescatter": f"dtypes may be mixed. {_SCATTER}",
    "init": (
        "Also arranges the ranks as nodes (`local_size`). `comm` may only be the list of all ranks; `process_sets` may "
        "also hold lists of ranks, and must be the same on every rank. Works during graph construction."
    ),
    "join": (
        "For your own `allreduce` calls; raises an error if `DistributedOptimizer` or `DistributedGradientTape` has "
        "exchanged gradients, because their exchange uses all-gathers."
    ),
    "reducescatter": f"{_SCATTER} Arguments have `horovod.tensorflow`'s order.",
    "refs_to_vars": "For TensorFlow's variables; those of Keras have no `ref()`.",
    "remove_process_set": "A set that the grid of nodes also uses is kept for the grid.",
    "vars_to_refs": "For TensorFlow's variables; those of Keras have no `ref()`.",
}
_ATTRIBUTES = "Attributes are copied; they may be numbers, strings, arrays, and lists and dictionaries of them."
_MODEL = (
    "Also residuals, and all optimizers of the model. Unless reset callbacks are registered, the learning rate follows "
    f"the number of ranks. {_ATTRIBUTES}"
)
# The same for hvd_sparse.elastic.
ELASTIC_DIFFERENCES: dict[str, str] = {
    "CommitStateCallback": "By default as often as takes a twentieth of the time, instead of after each batch.",
    "KerasState": _MODEL,
    "ObjectState": f"{_ATTRIBUTES} `bcast_object` and `get_rank` may be left out.",
    "TensorFlowKerasState": f"{_MODEL} `backend` has no effect.",
    "TensorFlowState": f"Needs its list of variables; residuals are not kept. {_ATTRIBUTES} `session` has no effect.",
    "UpdateBatchStateCallback": "Counts the batches done: after the first batch of an epoch `state.batch` is 1, not 0.",
    "run": "Without an elastic launcher, the loss of a rank is an error.",
}

_HEAD = """# Horovod's names

Each public name of Horovod {version} for TensorFlow and Keras, and what it does with `import hvd_sparse as hvd`.
Generated by `.venv/bin/python -m tools.horovod_names`; a test compares this page with its output. A name that
"raises" can be imported; using it raises an error with that text.
"""


def public_names(module: str) -> list[str]:
    """Horovod's own names in one of its modules."""
    shown = dir(importlib.import_module(module))
    left = set(ACCIDENTAL) | FROM_ABOVE.get(module, set())
    return [name for name in shown if not name.startswith("_") and name not in left]


def ours(module: str, name: str) -> Any:
    """The object that hvd_sparse has for a name in one of Horovod's modules; None if it has none."""
    place = PLACES[module].removeprefix("hvd_sparse").lstrip(".")
    holder = getattr(hvd_sparse, place, None) if place else hvd_sparse
    return getattr(holder, name, None)


def missing() -> list[str]:
    """Horovod's names, as "module.name", that hvd_sparse does not have."""
    return [f"{module}.{name}" for module in PLACES for name in public_names(module) if ours(module, name) is None]


def page() -> str:
    """The text of the page."""
    parts = [_HEAD.format(version=horovod.__version__)]
    for module, place in PLACES.items():
        parts.append(f"\n## `{module}`: in `{place}`\n\n| name | here |\n|---|---|\n")
        parts += [f"| `{name}` | {_told(module, name)} |\n" for name in public_names(module)]
    parts.append("\n## Left out\n\nOther names that dir() of these modules shows, which are not Horovod's own:\n\n")
    parts += [f"- `{name}`: {reason}\n" for name, reason in sorted(ACCIDENTAL.items())]
    return "".join(parts)


def _told(module: str, name: str) -> str:
    if ours(module, name) is None:
        return "**missing**"
    if name in names.REFUSED:
        return f"raises: {names.REFUSED[name]}"
    differences = ELASTIC_DIFFERENCES if PLACES[module] == "hvd_sparse.elastic" else DIFFERENCES
    return f"works, with differences: {differences[name]}" if name in differences else "works"


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes docs/horovod_names.md.")
    parser.add_argument("--print", action="store_true", help="print the page instead of writing it")
    if parser.parse_args().print:
        print(page(), end="")
        return
    PAGE.write_text(page())
    print(f"Wrote {PAGE}.")


if __name__ == "__main__":
    main()
