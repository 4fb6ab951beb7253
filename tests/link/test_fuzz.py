"""Thousands of random messages to a server: none is accepted, and it continues to answer."""

import random

import msgpack
import pytest

from link import WireError, forms
from tests.link.actors import SAID, Asker, altered, echo, until

MANY = [pytest.param(2_000, id="2000"), pytest.param(20_000, id="20000", marks=pytest.mark.thorough)]
KINDS = [*forms.OF_CLIENTS, *forms.OF_SERVERS, "wait", "say", "said", "", "x" * 300]


def noise(draw):
    return draw.randbytes(draw.choice((0, 1, 3, 16, 32, 100, 2000)))


def value(draw, depth=0):
    """A random value that msgpack can encode."""
    kinds = [
        lambda: draw.randrange(-(2**63), 2**64),
        lambda: draw.choice((0, 1, 2**31, True, False, None)),
        lambda: draw.choice((draw.random(), float("nan"), float("inf"), -1e300)),
        lambda: noise(draw),
        lambda: "é" * draw.randrange(200),
        lambda: msgpack.ExtType(draw.randrange(128), noise(draw)),
    ]
    if depth < 3:
        kinds += [
            lambda: [value(draw, depth + 1) for _ in range(draw.randrange(3))],
            lambda: {draw.choice(("kind", "number", "nonce", 5)): value(draw, depth + 1) for _ in range(3)},
        ]
    return draw.choice(kinds)()


def header(draw):
    """Random bytes, or a header that is nearly right."""
    kind = draw.choice(KINDS)
    forms_of_all = {**forms.OF_CLIENTS, **forms.OF_SERVERS, "say": SAID, "said": SAID}
    fields = {name: value(draw) for name in forms_of_all.get(kind, ())}
    if draw.random() < 0.3:
        fields[draw.choice(("number", "version", "more"))] = value(draw)
    packed = msgpack.packb({"kind": kind, **fields})
    return draw.choice((packed, packed[: draw.randrange(len(packed) + 1)], packed + noise(draw), noise(draw)))


def message(draw):
    """Frames from a sender that does not know the secret."""
    return [header(draw), *(noise(draw) for _ in range(draw.randrange(5)))]


def untagged(draw, right):
    """A request that was altered after it was tagged."""
    frame = draw.randrange(3)
    return draw.choice(
        (
            lambda: altered(right, frame, draw.randrange(len(right[frame]))),
            lambda: [*right[:frame], right[frame][: draw.randrange(len(right[frame]))], *right[frame + 1 :]],
            lambda: [right[each] for each in draw.choice(((0, 2, 1), (1, 0, 2), (2, 1, 0), (0, 1), (0,), (1, 2)))],
            lambda: [*right, noise(draw)],
        )
    )()


def spoilt(draw, asker):
    """Frames from a sender that has proved to know the secret, and then sends something invalid."""
    if draw.random() < 0.6:
        return untagged(draw, asker.request(1))
    if draw.random() < 0.5:
        return asker.tagged(noise(draw), noise(draw))
    return asker.request(1, **{draw.choice(list(SAID)): [draw.random()]})


@pytest.mark.parametrize("count", MANY)
def test_nothing_of_a_stranger_is_accepted(count, serve, ask, place, heard):
    draw, handled = random.Random(count), []
    serve(handled.append)
    asker = Asker(place)
    asker.socket.sndhwm = 0
    for _ in range(count):
        asker.send(message(draw))
    assert until(lambda: len(heard.refusals) == count)
    asker.close()
    assert_nothing_was(handled, ask)


@pytest.mark.parametrize("count", [pytest.param(200, id="200"), pytest.param(2_000, marks=pytest.mark.thorough)])
def test_nothing_spoilt_of_who_is_known_is_accepted(count, serve, ask, place):
    draw, handled = random.Random(count), []
    serve(handled.append)
    asker = Asker(place)
    for _ in range(count):
        asker.shake_hands()
        asker.send(spoilt(draw, asker))
        assert asker.hear()["kind"] == "refuse"
    asker.close()
    assert_nothing_was(handled, ask)


def assert_nothing_was(handled, ask):
    """Asserts that no message was accepted, and that a valid one is."""
    assert handled == []
    answer = ask().ask(1, "say", b"after all", **SAID)
    assert until(lambda: handled)
    echo(handled[0])
    assert bytes(answer.result(60).payload) == b"after all"


@pytest.mark.parametrize("count", MANY)
def test_a_header_is_of_its_form_or_an_error(count):
    draw, known = random.Random(count), {**forms.OF_CLIENTS, **forms.OF_SERVERS}
    for _ in range(count):
        try:
            said = forms.unpack(header(draw), known)
        except WireError:
            continue
        assert said.keys() == {"kind", *known[said["kind"]]}
