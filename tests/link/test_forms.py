"""The form of messages: they arrive unchanged, and messages of another form are refused."""

import math

import hypothesis
import msgpack
import numpy as np
import pytest
from hypothesis import strategies

from link import Protocol, WireError, forms
from tests.link.actors import ECHO, SAID

ASKED = {"ask": {"number": (int, 2**63 - 1), "count": (int, 100)}}
SAYING = forms.numbered(ECHO.requests)


@pytest.mark.parametrize(
    "header, told",
    [
        (b"", "no header"),
        (b"\x93\x01\x02\x03", "no header"),
        (b"\x01", "another kind, where"),
        (forms.pack("refuse", reason="x"), "another kind, where 'ask' was expected"),
        (forms.pack("ask", number=1), "other fields"),
        (forms.pack("ask", number="1", count=1), "a number of type str"),
        (forms.pack("ask", number=1, count=True), "a count of type bool"),
        (forms.pack("ask", number=1, count=1.0), "a count of type float"),
        (forms.pack("ask", number=1, count=-1), "negative"),
        (forms.pack("ask", number=1, count=101), "more than 100"),
        (forms.pack("ask", number=1, count=1) + b"\x00", "no header"),
        (msgpack.packb({"kind": ["ask"]}), "no header"),
        (msgpack.packb({"kind": {"a": {"b": 1}}}), "another kind, where"),
        (msgpack.packb({1: "ask"}), "no header"),
        (bytes(forms.HEADER_BYTES + 1), "a header of"),
    ],
)
def test_what_has_another_form_is_refused(header, told):
    with pytest.raises(WireError, match=told):
        forms.unpack(header, ASKED)


@pytest.mark.parametrize(
    "field, value, told",
    [
        ("share", math.nan, "a share of inf"),
        ("share", -math.inf, "a share of inf"),
        ("share", -1e6 - 1, "more than 1000000.0"),
        ("share", 1, "a share of type int"),
        ("loud", 1, "a loud of type int"),
        ("loud", None, "a loud of type NoneType"),
        ("word", "é" * 11, "a word of 22"),
        ("word", b"bytes", "a word of type bytes"),
        ("mark", bytes(21), "a mark of 21"),
        ("mark", "text", "a mark of type str"),
        ("count", np.int64(3), "a count of type int64"),
    ],
)
def test_a_field_of_another_form_is_neither_sent_nor_taken(field, value, told):
    fields = {**SAID, field: value}
    with pytest.raises(ValueError, match=told) as raised:
        forms.require(ECHO.requests, "say", fields)
    assert not isinstance(raised.value, WireError)
    if not isinstance(value, np.generic):
        with pytest.raises(WireError, match=told):
            forms.unpack(forms.pack("say", number=1, **fields), SAYING)


FIELDS = strategies.fixed_dictionaries(
    {
        "count": strategies.integers(0, 100),
        "share": strategies.floats(-1e6, 1e6),
        "loud": strategies.booleans(),
        "word": strategies.text(max_size=5),  # of at most four bytes per character
        "mark": strategies.binary(max_size=20),
    }
)


@hypothesis.given(FIELDS, strategies.integers(0, 2**63 - 1))
def test_what_has_its_form_comes_back_as_it_was(fields, number):
    forms.require(ECHO.requests, "say", fields)
    header = forms.pack("say", number=number, **fields)
    assert forms.unpack(memoryview(header), SAYING) == {"kind": "say", "number": number, **fields}


@hypothesis.given(strategies.binary(max_size=60))
def test_what_is_no_header_is_a_wire_error(header):
    with pytest.raises(WireError):
        forms.unpack(header, SAYING)


@hypothesis.given(FIELDS, strategies.data())
def test_a_header_that_was_changed_is_refused_or_has_its_form(fields, data):
    header = bytearray(forms.pack("say", number=1, **fields))
    header[data.draw(strategies.integers(0, len(header) - 1))] = data.draw(strategies.integers(0, 255))
    try:
        said = forms.unpack(bytes(header), SAYING)
    except WireError:
        return
    kind, _ = said.pop("kind"), said.pop("number")
    forms.require(ECHO.requests, kind, said)


def test_another_kind_is_not_sent():
    with pytest.raises(ValueError, match=r"Expected one of the kinds \['say'\], got 'shout'"):
        forms.require(ECHO.requests, "shout", SAID)


@pytest.mark.parametrize(
    "kind, form, told",
    [
        ("wait", {}, "the link uses itself"),
        ("hello", {}, "the link uses itself"),
        ("say", {"number": (int, 1)}, "the link uses itself"),
        ("say", {"payload": (bytes, 1)}, "the link uses itself"),
        ("say", {"list": (list, 1)}, "none of"),
        ("say", {"share": (float, math.inf)}, "no finite bound"),
        ("say", {"share": (float, math.nan)}, "no finite bound"),
        ("say", {"count": (int, -1)}, "no finite bound"),
        ("say", {"mark": (bytes, forms.HEADER_BYTES)}, "put what is large into the payload"),
        ("say", {f"field {each}": (int, 1) for each in range(17)}, "more than 16 fields"),
    ],
)
def test_a_protocol_that_no_link_can_carry_is_refused(kind, form, told):
    for protocol in (Protocol("x", 1, {kind: form}, {}, 0, 0), Protocol("x", 1, {}, {kind: form}, 0, 0)):
        with pytest.raises(ValueError, match=told):
            protocol.check()


def test_the_largest_header_of_a_protocol_can_be_read():
    form = {"mark": (bytes, forms.HEADER_BYTES - 200), **{f"{each}": (int, 2**63 - 1) for each in range(2)}}
    Protocol("x", 1, {"say": form}, {}, 0, 0).check()
    fields = {"mark": bytes(forms.HEADER_BYTES - 200), "0": 2**63 - 1, "1": 2**63 - 1}
    header = forms.pack("say", number=2**63 - 1, **fields)
    assert forms.unpack(header, forms.numbered({"say": form}))["mark"] == fields["mark"]


def test_payloads_are_memory_that_is_not_copied():
    array = np.arange(12, dtype=np.int32).reshape(3, 4)
    assert np.shares_memory(np.frombuffer(forms.flat(array, 48), np.int32), array)
    assert len(forms.flat(np.zeros((0, 5)), 0)) == 0 and len(forms.flat(b"abc", 3)) == 3
    with pytest.raises(ValueError, match="at most 47 bytes, got 48"):
        forms.flat(array, 47)
    with pytest.raises(ValueError, match="contiguous memory"):
        forms.flat(array[:, ::2], 100)
