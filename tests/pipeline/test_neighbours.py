"""Stages of one process that communicate over real sockets: which of them get an error, and how soon."""

from __future__ import annotations

import threading

import pytest

from hvd_sparse.pipeline import messages
from hvd_sparse.pipeline.neighbours import StageError
from tests.pipeline.staged import neighbours as stages

FORWARD = {
    **{"mode": "train", "step": 1, "micro": 0, "micros": 1, "dtype": "float32", "wire": "float32"},
    **{"shape": messages.pack_shape((1, 2)), "kept": 0, "penalty": 0.0, "batch": 0},
}
ANSWER = {"culprit": "", "squares": -1.0, "logs": b""}


def test_a_micro_batch_is_a_request_and_its_gradient_the_answer():
    with stages(2) as (first, last):
        asked = first.ask("forward", b"12345678", **FORWARD)
        request = last.receive("forward")
        assert bytes(request.payload) == b"12345678" and request.fields == FORWARD
        last.answer(request, "backward", b"87654321", **ANSWER)
        answer = first.answer_to(asked)
        assert (answer.kind, bytes(answer.payload)) == ("backward", b"87654321")
        assert first.seconds_waiting > 0.0


def test_a_stage_that_cannot_go_on_tells_both_sides():
    with stages(3) as (first, middle, last):
        asked = first.ask("forward", b"12345678", **FORWARD)
        middle.receive("forward")
        failing = threading.Thread(target=middle.fail, args=("the reason",))
        failing.start()
        for hears in (lambda: first.answer_to(asked), lambda: last.receive("forward")):
            with pytest.raises(StageError, match="the reason"):
                hears()
        first.fail("the reason")
        first.abandon()  # so that the middle one stops waiting
        failing.join(10)
        assert not failing.is_alive()
        with pytest.raises(StageError, match="before"):
            middle.require_alive()


@pytest.mark.parametrize("dies", [0, 1])
def test_a_stage_that_is_gone_is_named(dies):
    with stages(2) as (first, last):
        asked = first.ask("forward", b"12345678", **FORWARD)
        last.receive("forward")
        (first, last)[dies].abandon()
        with pytest.raises(StageError, match=rf"stage {dies} \(rank {dies}\) was lost"):
            first.answer_to(asked) if dies else last.receive("decide")


def test_another_request_than_was_expected_is_told():
    with stages(2) as (first, last):
        first.ask("decide", step=1, culprit="", squares=-1.0)
        with pytest.raises(StageError, match=r"expected 'forward' of stage 0 \(rank 0\), got 'decide'"):
            last.receive("forward")


def test_a_stage_that_has_taken_leave_is_not_waited_for():
    """For example, one that was given fewer batches."""
    with stages(2) as (first, last):
        first.close()
        with pytest.raises(StageError, match=r"expected 'forward' of stage 0 \(rank 0\), got a disconnect"):
            last.receive("forward")


def test_a_stage_of_another_trainer_is_no_neighbour():
    with stages(2, ("trainer 0", "trainer 1")) as (first, last):
        asked = first.ask("forward", b"12345678", **FORWARD)
        with pytest.raises(StageError, match="another subject|another job"):
            first.answer_to(asked)
        assert last.place.is_last


def test_who_takes_leave_is_not_missed():
    with stages(2) as (first, last):
        leaving = threading.Thread(target=first.close)
        leaving.start()
        last.close()  # waits for the first
        leaving.join(10)
        assert not leaving.is_alive()
