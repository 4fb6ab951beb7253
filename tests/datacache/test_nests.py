"""Nests: what is packed is unpacked to the bit, alone and in batches, and what is no such nest is refused in words."""

import collections

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from datacache import nests
from datacache.elements import Elements
from datacache.levels import DamagedRecordError
from datacache.nests import Group, Leaf, MismatchError, Packing

DTYPES = ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64", "complex128", "bfloat16"]


@st.composite
def leaf_of(draw):
    """A leaf, and a strategy for its arrays."""
    varying = draw(st.lists(st.booleans(), max_size=3))
    fixed = [None if free else draw(st.integers(0, 3)) for free in varying]
    dtype = draw(st.sampled_from([*DTYPES, "str", "bytes"]))

    @st.composite
    def array(draw):
        shape = tuple(draw(st.integers(0, 3)) if size is None else size for size in fixed)
        if dtype in nests.TEXT:
            texts = st.text(max_size=5) if dtype == "str" else st.binary(max_size=5)
            made = np.empty(int(np.prod(shape)), object)
            made[:] = [draw(texts) for _ in range(made.size)]
            return made.reshape(shape)
        raw = draw(arrays_of.arrays(np.uint8, (*shape, nests.dtype_of(dtype).itemsize)))
        return (raw % 2 if dtype == "bool" else raw).view(nests.dtype_of(dtype)).reshape(shape)

    return Leaf(dtype, tuple(fixed)), array()


@st.composite
def nest_of(draw, depth=2):
    """A nest, and a strategy for what it describes."""
    kind = draw(st.sampled_from(["leaf", "dict", "tuple"])) if depth else "leaf"
    if kind == "leaf":
        return draw(leaf_of())
    parts = draw(st.lists(nest_of(depth - 1), min_size=1, max_size=3))
    described, values = zip(*parts, strict=True)
    if kind == "tuple":
        return Group(None, described), st.tuples(*values)
    keys = tuple(draw(st.lists(st.text(max_size=3), min_size=len(parts), max_size=len(parts), unique=True)))
    return Group(keys, described), st.fixed_dictionaries(dict(zip(keys, values, strict=True)))


def assert_same(made, wanted):
    """That two nests are equal to the bit."""
    if isinstance(wanted, dict):
        assert list(made) == list(wanted)
        for key in wanted:
            assert_same(made[key], wanted[key])
    elif isinstance(wanted, tuple):
        assert isinstance(made, tuple) and len(made) == len(wanted)
        for one, other in zip(made, wanted, strict=True):
            assert_same(one, other)
    elif isinstance(wanted, list):
        assert isinstance(made, list)
        assert_same(tuple(made), tuple(wanted))
    else:
        made, wanted = np.asarray(made), np.asarray(wanted)
        assert (made.shape, made.dtype) == (wanted.shape, wanted.dtype)
        assert made.tolist() == wanted.tolist() if made.dtype == object else made.tobytes() == wanted.tobytes()


@given(st.data())
def test_what_is_packed_is_unpacked(data):
    nest, values = data.draw(nest_of())
    packing = Packing(nest)
    batch = [data.draw(values) for _ in range(data.draw(st.integers(1, 3)))]
    packed = [packing.pack(made) for made in batch]
    for made, bits in zip(batch, packed, strict=True):
        assert packing.layout.admits(packing.layout._replace(shape=bits.shape))
        assert_same(nests.built(nest, iter(packing.unpack(bits))), made)
    elements = Elements(nest, packed=True, labelled=False)
    whole = elements.batch(packed if elements.layout.varies else np.stack(packed), np.zeros(len(packed), np.int64))
    columns = [list(nests.arrays(nest, made)) for made in batch]
    wanted = [
        nests.stacked(leaf, column) for leaf, column in zip(elements.leaves, zip(*columns, strict=True), strict=True)
    ]
    assert_same(whole, nests.built(nest, iter(wanted)))
    assert nests.from_json(nests.to_json(nest)) == nest


@given(st.data())
def test_what_is_cut_off_or_longer_is_damaged(data):
    nest, values = data.draw(nest_of())
    packing = Packing(nest)
    packed = packing.pack(data.draw(values))
    for wrong in (np.append(packed, np.zeros(8, np.uint8)), packed[: len(packed) // 8 * 8 - 8]):
        if len(wrong) != len(packed) and len(packed):
            with pytest.raises(DamagedRecordError, match=f"it has {len(wrong)} bytes"):
                packing.unpack(wrong)


def test_lengths_that_are_not_trusted():
    packing = Packing(Leaf("str", ()))
    packed = packing.pack("text").copy()
    packed[:8].view("<u8")[0] = 2**63
    with pytest.raises(DamagedRecordError, match="less than its parts take"):
        packing.unpack(packed)
    packed[:8].view("<u8")[0] = 2**64 - 8
    with pytest.raises(DamagedRecordError, match="less than its parts take"):
        packing.unpack(packed)


def test_what_something_is():
    Point = collections.namedtuple("Point", ["x", "y"])
    made = {"image": np.zeros((2, 3), ">f4"), "boxes": [[1, 2], [3, 4]], "of": Point(1.5, "name"), "raw": b"a\0"}
    nest = nests.described(made)
    assert str(nest) == "{'image': float32 [2, 3], 'boxes': int64 [2, 2], 'of': (float64, str), 'raw': bytes}"
    assert nests.described(np.zeros(2, ml_dtypes.bfloat16)) == Leaf("bfloat16", (2,))
    assert nests.described(["a", "bc"]) == nests.described(np.array(["a", "bc"])) == Leaf("str", (2,))


def test_zeros_at_the_end_of_bytes_and_lists_without_elements_are_kept():
    for made in (b"a\0", [b"a\0", b"b"], ["a\0"]):
        packing = Packing(nests.described(made))
        assert packing.unpack(packing.pack(made))[0].tolist() == made
    packing = Packing(Leaf("str", (None,)))
    assert packing.unpack(packing.pack([]))[0].tolist() == []


@pytest.mark.parametrize(
    "made, told",
    [
        (None, r"Expected an array of numbers, a number, a string or bytes, got NoneType\."),
        ({"x": (1, {2: 3})}, r"a dict with strings as keys at \['x'\]\[1\], got the keys \[2\]"),
        ({"x": {}}, r"with strings as keys at \['x'\], got the keys \[\]"),
        ((1, ()), r"at least one part in a tuple at \[1\]"),
        ({"x": [[1], [2, 3]]}, r"at \['x'\], got list that is none .*: pad rows of unequal length"),
        ({"x": []}, r"a list with elements at \['x'\] in the first sample, got \[\], .* numpy.array\(\[\], str\)"),
        ({"x": ["a", 1.5, None]}, r"at \['x'\], got list of object"),
        ({"x": np.array(["2020-01-01"], "M8[D]")}, r"at \['x'\], got ndarray of datetime64"),
    ],
)
def test_what_is_no_nest_is_refused(made, told):
    with pytest.raises(MismatchError, match=told):
        nests.described(made)


@pytest.mark.parametrize(
    "made, told",
    [
        ({"x": np.zeros(2), "y": ("a", 1)}, r"Expected float64 \[3\] at \['x'\], got float64 \[2\]: .*\(None,\) there"),
        ({"x": np.zeros(3, "f4"), "y": ("a", 1)}, r"Expected float64 \[3\] at \['x'\], got float32 \[3\]\.|there"),
        ({"x": np.zeros(3), "y": ("a", "b")}, r"Expected int64 at \['y'\]\[1\], got str\.|there"),
        ({"x": np.zeros(3), "y": ("a",)}, r"Expected a tuple of 2 at \['y'\], got a tuple of 1"),
        ({"x": [[1], [2, 3]], "y": ("a", 1)}, r"Expected an array, .* at \['x'\], got list that is none"),
        ({"x": np.zeros(3)}, r"Expected a dict with the keys \['x', 'y'\], got a dict with the keys \['x'\]"),
        (np.zeros(3), r"Expected a dict with the keys \['x', 'y'\], got ndarray"),
    ],
)
def test_what_is_another_nest_is_refused(made, told):
    packing = Packing(nests.described({"x": np.zeros(3), "y": ("a", 1)}))
    with pytest.raises(MismatchError, match=told):
        packing.pack(made)


def test_shapes_change_where_they_are_given():
    nest = nests.described({"image": np.zeros((2, 3)), "boxes": np.zeros((5, 4)), "name": "a"})
    changed = nests.with_shapes(nest, nests.parse_shapes({"boxes": (None, 4), "image": None}))
    assert str(changed) == "{'image': float64 [2, 3], 'boxes': float64 [None, 4], 'name': str}"
    pair = nests.described((np.zeros((2, 3)), np.zeros(5)))
    assert (
        str(nests.with_shapes(pair, nests.parse_shapes(((None, 3), (None,))))) == "(float64 [None, 3], float64 [None])"
    )
    for wrong, told in [
        ({"other": (None,)}, "Expected shapes like"),
        ({"boxes": (None,)}, r"a shape of 2 dimensions at \['boxes'\]"),
        ((None, 4), "Expected shapes like"),
        ({"boxes": (-1, 4)}, "Expected a shape of decoded samples"),
    ]:
        with pytest.raises(ValueError, match=told):
            nests.with_shapes(nest, nests.parse_shapes(wrong))
