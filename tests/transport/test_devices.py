"""Which GPUs ranks may have, from what each of them reports."""

import pytest

from hvd_sparse.transport import devices


def places(**gpus):
    """Two ranks on each host, which see this many GPUs to select from."""
    return [{"host": host, "gpus": count} for host, count in gpus.items() for _ in range(2)]


@pytest.mark.parametrize("gpus", [{"a": 0}, {"a": 2}, {"a": 8, "b": 2}, {"a": 0, "b": 4}])
def test_a_gpu_for_each_rank_or_nothing_to_select_is_no_fault(gpus):
    assert devices.fault(places(**gpus)) is None


def test_fewer_gpus_than_ranks_are_told_with_the_host_and_the_ways_out():
    three = [*places(a=2), {"host": "a", "gpus": 2}, *places(b=4)]
    told = devices.fault(three)
    assert "a: 3 ranks and 2 GPUs" in told and "b:" not in told
    assert devices.SWITCH_VARIABLE in told and "CUDA_VISIBLE_DEVICES" in told


def test_without_a_gpu_nothing_is_selected():
    assert devices.selectable() == 0
    devices.pin(3)
    assert not devices.reads_gpus() and not devices.selects_on_gpu()
