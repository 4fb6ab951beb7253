"""The order of passes: each micro-batch once in each direction, backward in order, within the stated memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse.pipeline.schedules import SCHEDULES, Pass, fill_drain, one_forward_one_backward


@pytest.mark.parametrize("name", SCHEDULES)
@given(stages=st.integers(1, 9), micro_batches=st.integers(1, 20))
def test_each_stage_takes_each_micro_batch_once_each_way_in_order(name, stages, micro_batches):
    for stage in range(stages):
        passes = SCHEDULES[name](stage, stages, micro_batches)
        for is_forward in (True, False):
            assert [each.number for each in passes if each.is_forward is is_forward] == list(range(micro_batches))
        for number in range(micro_batches):
            assert passes.index(Pass(True, number)) < passes.index(Pass(False, number))


@pytest.mark.parametrize("name", SCHEDULES)
@given(stages=st.integers(1, 9), micro_batches=st.integers(1, 20))
def test_stages_never_wait_for_each_other_in_a_ring(name, stages, micro_batches):
    """All passes can be made if each waits for its neighbour's pass of the same micro-batch."""
    left = [SCHEDULES[name](stage, stages, micro_batches)[::-1] for stage in range(stages)]
    done = [set() for _ in range(stages)]
    while any(left):
        ready = [stage for stage in range(stages) if left[stage] and _can(left[stage][-1], stage, done)]
        assert ready, f"all wait: {left}"
        for stage in ready:
            done[stage].add(left[stage].pop())


def _can(each: Pass, stage: int, done: list[set[Pass]]) -> bool:
    source = stage - 1 if each.is_forward else stage + 1
    return not 0 <= source < len(done) or each in done[source]


@given(stages=st.integers(1, 9), micro_batches=st.integers(1, 20))
def test_one_forward_one_backward_holds_few(stages, micro_batches):
    for stage in range(stages):
        assert _most_held(one_forward_one_backward(stage, stages, micro_batches)) == min(stages - stage, micro_batches)
        assert _most_held(fill_drain(stage, stages, micro_batches)) == micro_batches


def _most_held(passes: list[Pass]) -> int:
    held = most = 0
    for each in passes:
        held += 1 if each.is_forward else -1
        most = max(most, held)
    return most
