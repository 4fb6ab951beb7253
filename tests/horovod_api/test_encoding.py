"""Objects as bytes: they come back with their types, and invalid bytes do no harm."""

from __future__ import annotations

import collections
import fractions
import json

import hypothesis
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as given
from hypothesis.extra import numpy as arrays

from hvd_sparse.horovod_api import encoding

HASHED = given.one_of(
    given.none(), given.booleans(), given.integers(), given.floats(allow_nan=False), given.text(), given.binary()
)
SINGLE = HASHED | given.floats() | arrays.arrays(arrays.scalar_dtypes(), arrays.array_shapes(min_dims=0, min_side=0))
OBJECTS = given.recursive(
    SINGLE,
    lambda inner: given.lists(inner)
    | given.lists(inner).map(tuple)
    | given.dictionaries(HASHED | given.tuples(HASHED, HASHED), inner)
    | given.frozensets(HASHED)
    | given.sets(HASHED),
    max_leaves=12,
)


def require_same(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype and found.shape == expected.shape and found.tobytes() == expected.tobytes()
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            require_same(one, other)
    elif isinstance(expected, dict):
        require_same(list(found), list(expected))
        require_same(list(found.values()), list(expected.values()))
    else:
        assert found == expected or (found != found and expected != expected)


@hypothesis.given(OBJECTS)
def test_what_goes_in_comes_out(value):
    require_same(encoding.decode(encoding.encode(value)), value)


@pytest.mark.parametrize(
    "value",
    [
        -0.0,
        2**200,
        "\ud800 alone",
        np.float16(1.5),
        np.datetime64("2026-01-02"),
        np.array(["a", "bcd"]),
        np.array([1, 2], ">i4"),
        np.ones([2, 3], ml_dtypes.bfloat16),
        ml_dtypes.bfloat16(1.5),
        np.arange(6).reshape(2, 3).T,
    ],
    ids=repr,
)
def test_what_is_easily_lost(value):
    found = encoding.decode(encoding.encode(value))
    assert type(found) is type(value) and np.array_equal(found, value) and str(found) == str(value)
    assert getattr(found, "dtype", None) == getattr(value, "dtype", None)


def test_arrays_may_be_written_to_and_tensors_stay_tensors():
    array = encoding.decode(encoding.encode(np.zeros(3)))
    array += 1
    tensor = encoding.decode(encoding.encode({"loss": tf.constant([1.5], tf.bfloat16)}))["loss"]
    assert isinstance(tensor, tf.Tensor) and tensor.dtype == tf.bfloat16 and float(tensor[0]) == 1.5


@pytest.mark.parametrize(
    "value, told",
    [
        (fractions.Fraction(1, 2), "Cannot send a fractions.Fraction"),
        ({"a": [1, print]}, r"the part \['a'\]\[1\] of the object, a builtins.builtin_function_or_method"),
        ({(1, print): 1}, "key .* of the object"),
        (collections.OrderedDict(), "collections.OrderedDict"),
        (np.array([print]), "numpy.ndarray"),
        (np.zeros(2, [("a", "i4")]), "numpy.ndarray"),
        (tf.constant("text"), "EagerTensor"),
    ],
)
def test_what_cannot_be_sent_is_named_with_a_remedy(value, told):
    with pytest.raises(TypeError, match=f"{told}.*without pickling.*pickled=True"):
        encoding.encode(value)


def test_what_contains_itself_is_refused():
    endless: list = []
    endless.append(endless)
    with pytest.raises(TypeError, match="at most 100 deep.*contain itself"):
        encoding.encode(endless)


def message(header, blocks=b""):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + blocks


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        (2**62).to_bytes(8, "little") + b"{}",
        message({"a": 1}),
        message(["bytes", 2**60]),
        message(["bytes", -1], b"ab"),
        message(["bytes", "1"], b"a"),
        message(["array", "<f4", [2**40, 2**40]], b"abcd"),
        message(["array", "<f4", [-1]], b"abcd"),
        message(["array", "|O", [1]], b"abcdefgh"),
        message(["array", "nothing", [1]], b"abcd"),
        message(["array", "string", [1]], b"abcd"),
        message(["array"]),
        message(["dict", [["list"], 1]]),
        message(["dict", 1]),
        message(["class", 1]),
        message([[]]),
        message([]),
        message(1, b"left"),
    ],
    ids=lambda data: repr(data[:50]),
)
def test_bytes_that_are_none_are_refused(data):
    with pytest.raises(ValueError, match="Expected an encoded object, got .* same version"):
        encoding.decode(data)


@hypothesis.given(OBJECTS, given.integers(0, 10**6), given.integers(1, 255))
def test_bytes_that_are_damaged_are_refused_or_read(value, place, change):
    data = bytearray(encoding.encode(value))
    data[place % len(data)] ^= change
    try:
        encoding.decode(bytes(data))
    except ValueError as error:
        assert "Expected an encoded object" in str(error)
