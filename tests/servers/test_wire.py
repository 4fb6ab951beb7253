"""Messages of servers: what is sent arrives, and invalid messages change nothing."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.compression.quantizers import OneBit
from hvd_sparse.compression.selectors import Quantized, TopK
from hvd_sparse.servers import wire
from hvd_sparse.servers.messages import Entries, MessageError, Pull, Push
from hvd_sparse.servers.pushing import Pushes, decoder, entries
from hvd_sparse.servers.rules import InOrderOfArrival
from tests.servers.simulated import Job, whole_of
from tests.servers.test_laws import OPTIMIZERS

SIZE = whole_of(1).size
CODED = ErrorFeedback(Quantized(TopK(0.5), OneBit("column")))
finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


@settings(max_examples=50, deadline=None)
@given(values=st.lists(finite, max_size=SIZE), everywhere=st.booleans(), number=st.integers(1, 2**62))
def test_what_is_sent_arrives(values, everywhere, number):
    indices = None if everywhere else np.arange(len(values), dtype=np.int32)
    sent = Entries(np.array(values, np.float32), indices)
    push, pull = Push(number, 0.25, sent), Pull(number, 7, 9, sent)
    for message, fields, read in (
        (push, wire.push_fields(push), wire.push_of),
        (pull, wire.pull_fields(pull), wire.pull_of),
    ):
        came = read(fields, memoryview(wire.payload(sent)))
        assert came[:-1] == message[:-1]
        assert came[-1].values.tobytes() == sent.values.tobytes()
        assert (came[-1].indices is None) == everywhere
        assert everywhere or came[-1].indices.tobytes() == indices.tobytes()


def test_codes_arrive_as_what_they_stand_for():
    shard = whole_of(1)
    (chosen,) = Pushes(CODED, [shard]).choose([tf.constant(np.linspace(-1, 1, SIZE), tf.float32)])
    sent = entries([part.numpy() for part in chosen])
    came = wire.entries_of(wire.entries_fields(sent), memoryview(wire.payload(sent)), decoder(CODED, shard))
    assert came.values.tobytes() == sent.values.tobytes() and came.indices.tobytes() == sent.indices.tobytes()
    assert sent.nbytes == len(wire.payload(sent)) < 8 * len(sent.values)
    with pytest.raises(MessageError, match="codes, where values were expected"):
        wire.entries_of(wire.entries_fields(sent), memoryview(wire.payload(sent)))


@pytest.mark.parametrize("messages", [2_000, pytest.param(100_000, marks=pytest.mark.thorough)])
def test_nothing_comes_of_random_messages(messages):
    """Messages with valid fields and random payloads, from a client that is trusted."""
    job = Job(1, OPTIMIZERS["SGD"], push=None, rule=InOrderOfArrival())
    server, decode, random = job.servers[0], decoder(CODED, job.shards[0]), np.random.default_rng(messages)
    before, accepted = job.parameters(), 0
    for _ in range(messages):
        count = int(random.choice([0, 1, 3, SIZE, 2**31]))
        everywhere, codes = bool(random.random() < 0.5), int(random.choice([0, 0, 1, 3]))
        scales = int(random.choice([0, 1, 4]))
        exact = 4 * (scales if codes or scales else count) + (0 if everywhere else 4 * count) + codes
        length = exact if exact < 1000 and random.random() < 0.7 else int(random.integers(0, 200))
        fields = {"push": int(random.integers(0, 3)), "rate": 0.1, "values": count, "everywhere": everywhere}
        fields |= {"scales": scales, "codes": codes}
        try:
            push = wire.push_of(fields, memoryview(random.bytes(length)), decode)
            server.push(0, push)
        except MessageError:
            continue
        if server.pushes > accepted:  # otherwise it was a repeated message that got the same answer
            accepted += 1
            assert push.number == accepted == server.pushes, "only what is in turn"
            assert np.isfinite(push.gradient.values).all() and len(push.gradient.values) <= SIZE
    # Random bits that happen to be finite floats at valid places are a push like any other; few are.
    assert accepted < messages / 20
    assert accepted or job.parameters().tobytes() == before.tobytes()
