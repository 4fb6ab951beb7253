"""What compressors on different ranks tell each other, besides what they select."""

from __future__ import annotations

from hvd_sparse.aggregators.base import AggregatorState
from hvd_sparse.aggregators.counting import CountingCommunicator
from hvd_sparse.aggregators.transaction import Traffic, Update
from hvd_sparse.compression.base import Compressor, Selection


def averaged(
    selection: Selection, compressor: Compressor, state: AggregatorState
) -> tuple[tuple[Update, ...], Traffic]:
    """Averages the reports of all senders; returns all updates of the compressor's state, and the bytes sent.

    Steps and bytes sent per rank: as an all-reduce of the report, and none if there is none.
    """
    updates = tuple(Update(variable, value) for variable, value in selection.updates)
    report, communicator = selection.report, state.communicator
    if report is None:
        return updates, Traffic()
    counted = CountingCommunicator(communicator, state.spec.grid)
    mean = counted.allreduce(report, "sum", f"{state.spec.name}.report") / float(communicator.size)
    learned = (Update(variable, value) for variable, value in compressor.reported(mean, state.inner))
    return (*updates, *learned), counted.traffic
