"""Arguments of `compile` that Horovod's scripts still pass and Keras 3 has removed."""

from __future__ import annotations

import warnings
from typing import Any

from hvd_sparse.transport import first_rank

# For some, only None is ignored.
_GONE = frozenset(
    ("cloning", "experimental_run_tf_function", "experimental_steps_per_execution", "pss_evaluation_shards")
)
_GONE_IF_NONE = frozenset(("distribute", "sample_weight_mode", "target_tensors"))


def left_out(asked: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `compile` without those that Keras 3 has removed; a warning names these."""
    gone = [name for name, value in asked.items() if name in _GONE or (name in _GONE_IF_NONE and value is None)]
    if gone:
        warnings.warn(
            f"compile() of Keras 3 has no {', '.join(f'{name}={asked[name]!r}' for name in gone)}, and the exchange "
            "does not need it: it is ignored. Remove it from the call.",
            stacklevel=first_rank.users_level(),
        )
    return {name: value for name, value in asked.items() if name not in gone}
