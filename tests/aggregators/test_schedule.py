"""Errors of schedules of recipes."""

from __future__ import annotations

import pytest

from hvd_sparse import recipes


@pytest.mark.parametrize("starts", [(), (1,), (1, 2), (0, 0), (0, 3, 2), (2, 1)])
def test_stages_begin_at_epoch_0_and_ascend(starts):
    with pytest.raises(ValueError, match="ascending stages that start at epoch 0"):
        recipes.schedule([(start, recipes.dense()) for start in starts])


def test_a_schedule_is_no_stage_of_another():
    inner = recipes.schedule([(0, recipes.dense()), (1, recipes.torus2d())])
    with pytest.raises(ValueError, match="list all stages in one"):
        recipes.schedule([(0, inner)])
