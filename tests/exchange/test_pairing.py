"""Variables of all ranks are paired by their order: what differs is one error on every rank, which says where."""

import pytest

from hvd_sparse.exchange import pairing
from hvd_sparse.exchange.pairing import Label
from hvd_sparse.transport import topology
from tests.grid import world

RANKS = 3
EQUAL = [Label("dense/kernel", ["float32", 2]), Label("dense/bias", ["float32", 3])]


def told(*of_ranks):
    """What each rank is told of these labels of theirs; None if nothing."""

    def compared(rank):
        try:
            pairing.compare(of_ranks[rank], topology.world(), "their variables", "Build them alike.", "pairing")
        except ValueError as error:
            return str(error)
        return None

    return world.run(RANKS, 1, compared)


def test_names_that_keras_has_numbered_do_not_count():
    assert told(EQUAL, [label._replace(name=f"dense_1/{label.name}") for label in EQUAL], EQUAL) == [None] * RANKS


@pytest.mark.parametrize(
    "others, differences",
    [
        (
            EQUAL[:1],
            [
                "rank 0 has 2 of them, rank {} has 1",
                "number 1 is dense/bias (float32, 3) on rank 0 and missing on rank {}",
            ],
        ),
        (
            [*EQUAL, EQUAL[0]],
            [
                "rank 0 has 2 of them, rank {} has 3",
                "number 2 is missing on rank 0 and dense/kernel (float32, 2) on rank {}",
            ],
        ),
        (EQUAL[::-1], ["number 0 is dense/kernel (float32, 2) on rank 0 and dense/bias (float32, 3) on rank {}"]),
        (
            [EQUAL[0], Label("own", ["float16", 3])],
            ["number 1 is dense/bias (float32, 3) on rank 0 and own (float16, 3) on rank {}"],
        ),
    ],
    ids=["fewer", "more", "turned", "another kind"],
)
@pytest.mark.parametrize("different", [[1], [2], [1, 2]], ids=str)
def test_what_differs_is_told_alike_on_every_rank(others, differences, different):
    of_ranks = [others if rank in different else EQUAL for rank in range(RANKS)]
    wanted = "; ".join(each.format(rank) for rank in different for each in differences)
    assert told(*of_ranks) == [f"The ranks disagree on their variables: {wanted}. Build them alike."] * RANKS


def test_names_that_a_user_gave_count():
    named = [label._replace(given=[given]) for label, given in zip(EQUAL, ["left", "right"], strict=True)]
    assert told(named, named, EQUAL) == [None] * RANKS  # where only one of them has a name nothing contradicts
    (message, *others) = told(named, [named[0], named[1]._replace(given=["middle"])], named)
    assert "number 1 is dense/bias (float32, 3) on rank 0 and dense/bias (float32, 3) on rank 1" in message
    assert others == [message] * 2
