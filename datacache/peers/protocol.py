"""The messages between peers: which samples are asked for, and which of them are sent."""

from __future__ import annotations

import numpy as np

from link import Protocol

MOST_SAMPLES = 8192  # in a request
MOST_BYTES = 256 << 20  # of an answer's payload; of a single sample, if it is larger

INDEX, LABEL, CHECKSUM = np.dtype("<u8"), np.dtype("<i8"), np.dtype("<u8")


def samples_at_a_time(sample_bytes: int) -> int:
    """The number of samples that are asked for in one request."""
    return max(1, min(MOST_SAMPLES, MOST_BYTES // max(1, sample_bytes)))


def protocol(sample_bytes: int) -> Protocol:
    """The protocol for samples of this size: a request carries indices, an answer the samples that were found."""
    most = samples_at_a_time(sample_bytes)
    return Protocol(
        name="datacache peers",
        version=2,
        requests={"ask": {"count": (int, MOST_SAMPLES)}},
        answers={
            "have": {
                "found": (bytes, MOST_SAMPLES),
                "labels": (bytes, MOST_SAMPLES * LABEL.itemsize),
                "checksums": (bytes, MOST_SAMPLES * CHECKSUM.itemsize),
            }
        },
        request_bytes=MOST_SAMPLES * INDEX.itemsize,
        answer_bytes=most * sample_bytes,
    )
