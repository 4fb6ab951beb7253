"""Cases that fail, to test that the harness detects it; only `tests/test_launch.py` runs them."""

import os
import time

import tensorflow as tf

from hvd_sparse import topology
from tests.parallel.cases import Launch, case
from tests.parallel.run import meet, number_of


@case(ranks=(2,))
def fails_on_one_rank_while_the_other_waits():
    if number_of()[0] == 1:
        raise ValueError("the reason that rank 1 gives")
    topology.world().allreduce(tf.constant(0), "sum", "waits")


@case(ranks=(2,), limit=3)
def takes_too_long():
    time.sleep(60)


@case(ranks=(2,))
def fails_on_one_rank_after_the_last_collective():
    assert number_of()[0] == 0, "rank 1 saw something else"


@case(ranks=(2,))
def passes():
    assert int(topology.world().allreduce(tf.constant(1), "sum", "passes")) == 2


def end_on_rank_1():
    topology.init()
    meet("started", [0] if number_of()[0] == 1 else [])  # or the error might reach rank 0 during the start
    if number_of()[0] == 1:
        os._exit(9)


@case(ranks=(2,), launch=Launch(dies=(1,)))
def dies_and_is_missed():
    end_on_rank_1()


@case(ranks=(2,), launch=Launch())
def dies_unexpectedly():
    end_on_rank_1()


@case(ranks=(2,), launch=Launch(ended=(0, 1)))
def one_of_two_tells():
    end_on_rank_1()


@case(ranks=(2,), launch=Launch(ended=(0, 1)))
def none_of_two_tells():
    topology.init()
    meet("started", [0, 1])
    os._exit(9)
