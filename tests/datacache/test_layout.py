"""The form of decoded samples: which arrays are accepted, and that the header of a payload is not trusted."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datacache.layout import Layout, common, parse_shape
from datacache.levels import DamagedRecordError

IMAGES = Layout("uint8", (None, None, 3))


@given(
    st.lists(st.integers(0, 4), max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.sampled_from(["uint8", "bool", "float64", "int16"]),
)
def test_what_is_packed_is_unpacked(shape, varying, dtype):
    layout = Layout(dtype, tuple(None if free else size for size, free in zip(shape, varying, strict=False)))
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    assert layout.admits(Layout(dtype, array.shape))
    unpacked = layout.unpack(layout.pack(array))
    np.testing.assert_array_equal(unpacked, array, strict=True)
    assert unpacked.flags.aligned and not unpacked.flags.writeable


def test_one_shape_for_all_takes_no_head():
    layout = Layout("float32", (2, 3))
    assert not layout.varies and layout.size == 24
    assert layout.pack(np.zeros((2, 3), np.float32)) == bytes(24)
    for length in (0, 23, 25):
        with pytest.raises(DamagedRecordError, match=f"it has {length} bytes, which is no float32"):
            layout.unpack(bytes(length))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        struct.pack("<2Q", 1, 1),
        struct.pack("<3Q", 1, 1, 3) + bytes(2),
        struct.pack("<3Q", 1, 1, 3) + bytes(4),
        struct.pack("<3Q", 1, 1, 4) + bytes(4),
        struct.pack("<3Q", 2**63, 2**63, 3) + bytes(3),
        struct.pack("<3Q", 2**32, 2**32, 3),
    ],
)
def test_a_head_that_is_not_of_its_payload_is_refused(payload):
    with pytest.raises(DamagedRecordError, match=f"it has {len(payload)} bytes"):
        IMAGES.unpack(payload)
    with pytest.raises(DamagedRecordError):
        IMAGES.shape_in(payload)


def test_a_layout_admits_what_it_says():
    assert IMAGES.admits(Layout("uint8", (5, 7, 3)))
    for other in [("uint8", (5, 7, 4)), ("uint8", (5, 7)), ("int8", (5, 7, 3)), ("uint8", (5, 7, 3, 1))]:
        assert not IMAGES.admits(Layout(*other))


def test_what_two_shapes_have_in_common():
    assert common((4, 5, 3), (4, 6, 3)) == (4, None, 3) and common((None, 5), (4, 5)) == (None, 5)
    assert common((4, 5), (4, 5, 3)) is None


def test_a_shape_is_sizes_and_none():
    assert parse_shape([None, np.int64(4), 3]) == (None, 4, 3) and parse_shape(()) == ()
    for wrong in [(None, -1), (2.5,), 3, "None", (None, "3")]:
        with pytest.raises(ValueError, match="None for each dimension that varies, such as \\(None, None, 3\\)"):
            parse_shape(wrong)
