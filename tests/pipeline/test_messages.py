"""Messages between stages: they arrive unchanged, have the stated number of bytes, and invalid ones are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse.pipeline import messages, wire
from hvd_sparse.pipeline.messages import Wire
from link import WireError

DTYPES = st.sampled_from(messages.WIRE_DTYPES)


def rows_of(shape, seed=0):
    return tf.constant(np.random.default_rng(seed).standard_normal(shape), tf.float32)


def sent(x: tf.Tensor, of: Wire) -> tuple[messages.Activations, bytes]:
    kept = messages.kept_of(x, of.kept)
    return kept, messages.encode_activations(kept, of.dtype).tobytes()


def rounded(values: tf.Tensor, dtype: str) -> np.ndarray:
    """The values after they have been sent."""
    largest = {"int8": 127, "int4": 7}.get(dtype)
    if largest is None:
        return tf.cast(tf.cast(values, dtype), tf.float32).numpy()
    own = values.numpy()
    scales = (np.abs(own).max(axis=-1, keepdims=True) / np.float32(largest)).astype("f4")
    return (np.rint(own / np.where(scales > 0, scales, 1)) * scales).astype("f4")


@given(
    shape=st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 80)), share=st.floats(0.01, 1.0), dtype=DTYPES
)
def test_activations_arrive_where_they_were(shape, share, dtype):
    of = Wire(dtype, max(1, round(share * shape[-1])))
    kept, payload = sent(rows_of(shape), of)
    assert len(payload) == messages.activation_bytes(math.prod(shape[:-1]), shape[-1], of)
    found = messages.decode_activations(memoryview(payload), shape, of, "float32")
    np.testing.assert_array_equal(found.values, rounded(kept.values, dtype))
    np.testing.assert_array_equal(
        found.dense(), messages.placed(tf.constant(rounded(kept.values, dtype)), kept.positions, shape[-1])
    )
    gradient = rows_of(shape, 1)
    values = messages.taken(gradient, found.positions)
    back = messages.decode_values(
        memoryview(messages.encode_values(values, "float32")), values.shape, "float32", "float32"
    )
    mask = messages.placed(tf.ones_like(kept.values), kept.positions, shape[-1])
    np.testing.assert_array_equal(messages.placed(back, kept.positions, shape[-1]), gradient * mask)


@pytest.mark.parametrize("dtype", messages.WIRE_DTYPES)
def test_what_is_not_finite_arrives_as_not_finite(dtype):
    for spoiled in (np.nan, np.inf, -np.inf):
        x = rows_of((3, 40)).numpy()
        x[1, 7] = spoiled
        of = Wire(dtype, 4)
        _, payload = sent(tf.constant(x), of)
        found = messages.decode_activations(memoryview(payload), (3, 40), of, "float32").dense().numpy()
        assert not np.isfinite(found[1]).all() and np.isfinite(found[[0, 2]]).all()


def test_positions_are_sent_in_fewer_bytes():
    """At 95% as 16-bit numbers, at 90% as one bit per element; in total over both ways 16 and 26 times fewer bytes."""
    assert messages.activation_bytes(1, 4000, Wire("float32", 200)) == 200 * 6
    assert messages.activation_bytes(1, 4000, Wire("float32", 400)) == 400 * 4 + 500
    assert messages.activation_bytes(1, 2**17, Wire("float32", 10)) == 10 * 8
    both = [
        messages.activation_bytes(1, 4000, Wire(d, 200)) + messages.value_bytes(1, 200, d)
        for d in ("float32", "float16")
    ]
    assert [2 * 4 * 4000 / each for each in both] == [16.0, pytest.approx(26.67, abs=0.01)]


def test_two_values_of_four_bits_are_a_byte():
    """The lower half is the first; a row with an odd number of values ends in an empty half, which must be zero."""
    x = tf.constant([[7.0, -7.0, 1.0], [0.0, -0.5, 3.5]])
    payload = messages.encode_values(x, "int4").tobytes()
    assert payload == np.float32([1.0, 0.5]).tobytes() + bytes([0x97, 0x01, 0xF0, 0x07])
    assert len(payload) == messages.value_bytes(2, 3, "int4")
    np.testing.assert_array_equal(messages.decode_values(memoryview(payload), (2, 3), "int4", "float32"), x)
    with pytest.raises(WireError, match="after the last of 3 codes"):
        messages.decode_values(memoryview(payload[:-1] + b"\x17"), (2, 3), "int4", "float32")


def test_other_bytes_are_refused(count=2_000):
    """Truncated, extended, altered or random: a `WireError`, or activations of the right shape; nothing else."""
    generator = np.random.default_rng(0)
    told = 0
    for number in range(count):
        shape = tuple(int(each) for each in generator.integers(1, 30, 2))
        of = Wire(messages.WIRE_DTYPES[number % 5], int(generator.integers(1, shape[-1] + 1)))
        length = messages.activation_bytes(shape[0], shape[1], of) + int(generator.integers(-2, 3)) * (number % 3 == 0)
        payload = generator.bytes(max(0, length))
        try:
            found = messages.decode_activations(memoryview(payload), shape, of, "float32")
        except WireError:
            told += 1
            continue
        positions = found.positions
        assert found.values.shape[0] == shape[0]
        if positions is not None:
            assert int(tf.reduce_max(tf.cast(positions, tf.int32))) < shape[1]
    assert count // 4 < told < count


@given(packed=st.binary(max_size=80))
def test_shapes_and_metrics_of_others_are_refused(packed):
    for read in (messages.unpack_shape, wire.unpack_logs):
        try:
            read(packed)
        except WireError:
            continue
    assert messages.unpack_shape(messages.pack_shape((3, 0, 7))) == (3, 0, 7)
    for other in ((3,), (3, 0), (-1, 3), (2**31, 3), (2**30, 2**30)):
        with pytest.raises(WireError):
            messages.unpack_shape(messages.pack_shape(other))


def test_metrics_are_numbers_by_name():
    assert wire.unpack_logs(wire.pack_logs({"loss": np.float32(0.5), "AUC": 1})) == {"loss": 0.5, "AUC": 1.0}
    assert wire.unpack_logs(wire.pack_logs({})) == {}
    for other in (b"[1]", b'{"a": "b"}', b"{", b"\xff\xfe", b"[" * 9000, b'{"a": 1' + b"0" * 400 + b"}"):
        with pytest.raises(WireError):
            wire.unpack_logs(other)
