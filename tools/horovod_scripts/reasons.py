"""Why some scripts and tests cannot pass: one sentence for each failure, found by its name and message."""

from __future__ import annotations

import dataclasses
import fnmatch
import re


@dataclasses.dataclass(frozen=True)
class Reason:
    """A sentence for failures whose name matches `name` (`fnmatch`) and whose message `said` (a regular expression)."""

    name: str
    said: str
    sentence: str


REASONS = (
    Reason(
        "*::test_grad_aggregation_with_inf_grad",
        r"The gradient holds a NaN or an infinity",
        "A gradient that is not finite stops all ranks with an error before anything is written; Horovod applies it.",
    ),
    Reason(
        "*::test_horovod_broadcast_graph_mode",
        r"broadcast_global_variables",
        "Keras 3 and TensorFlow 2 collect no global variables; pass them to `hvd.broadcast_variables`.",
    ),
    Reason(
        "*allreduce_product_cpu",
        r"incorrect results",
        "The test expects products of four random numbers, up to 1e8, to within 1e-4, which float32 cannot represent; "
        "plain Horovod gives the same bits.",
    ),
    Reason(
        "*::test_two_dispatchers",
        r"Dispatcher id must be within|Horovod has been shut down",
        "Each rank asks for the dispatcher with its own number, but there are only two: on four ranks plain Horovod "
        "fails, too.",
    ),
    Reason(
        "*::test_horovod_reducescatter_grad_cpu_process_sets",
        r"float16\(0\.0\) not less than 1e-08",
        "The error is 0.0, and the test asks whether it is less than 1e-8, which NumPy 2 converts to float16: 0.0.",
    ),
    Reason(
        "*::test_legacy_DistributedOptimizer_process_sets",
        r"Expected a Keras optimizer",
        "Optimizers of TensorFlow 1 are rejected with an error: use Keras's, or `hvd.DistributedGradientTape`.",
    ),
    Reason("*::test_legacy_optimizer", r"legacy", "Keras 3 has no legacy optimizers."),
    Reason(
        "*::test_partial_distributed_optimizer",
        r"_compute_gradients",
        "The test uses `_compute_gradients` of Keras 2's optimizers; Keras 3's have no such method.",
    ),
)


def reason_for(name: str, said: str) -> str | None:
    """The first sentence that fits; None if there is none, which the report then states."""
    for reason in REASONS:
        if fnmatch.fnmatch(name, reason.name) and re.search(reason.said, said):
            return reason.sentence
    return None
