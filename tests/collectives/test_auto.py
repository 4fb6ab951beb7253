"""The choices of auto, and the reasons."""

from __future__ import annotations

import tensorflow as tf

from hvd_sparse.collectives import Auto
from hvd_sparse.collectives.call_history import CallHistory, Calls
from hvd_sparse.costs import Link
from hvd_sparse.costs.collectives import Transport
from hvd_sparse.transport.communicator import LoneCommunicator
from tests import threads
from tests.collectives.counting import CountingCommunicator
from tests.collectives.vectors import FREE, GOOD, dense_of, expected_of, index_sets, slices_of


class TestAuto:
    @staticmethod
    def choices(auto, kinds, size, density, ranks=8):
        """The choices in successive calls."""
        calls = [[slices_of(each, [size]) for each in index_sets(kind, ranks, size, density)] for kind in kinds]

        def one_rank(grid):
            chosen = []
            for inputs in calls:
                auto(inputs[grid.world.rank], grid.world)
                chosen.append(auto.chosen(grid.world))
            return chosen

        results = threads.run(ranks, ranks, one_rank)
        assert all(chosen == results[0] for chosen in results)
        return results[0]

    def test_few_rows_go_in_pairs_and_many_in_pieces(self):
        """SparCML 5.3: latency against bandwidth. Few rows need sets that overlap; others would go in one call."""
        calls = Transport(Link(0.4e-4, 1e8), Link(1.5e-4, 1e8), Link(1.5e-4, 1e8), byte=2e-9)
        assert self.choices(Auto(calls), ["identical"] * 3, 100000, 0.01)[-1] == "recursive_doubling"
        assert self.choices(Auto(calls), ["overlapping"], 100000, 0.08) == ["split_allgather"]

    def test_little_data_goes_in_one_call_where_pairs_take_as_long_as_all(self):
        calls = Transport(Link(1e-4, 1e8), Link(1e-4, 1e8), Link(1e-4, 1e8))
        assert self.choices(Auto(calls), ["overlapping"], 100000, 0.0001) == ["allgather"]

    def test_what_fills_in_is_gathered_dense(self):
        assert self.choices(Auto(FREE), ["overlapping"], 100000, 0.5) == ["dynamic"]

    def test_what_was_seen_is_what_the_next_call_expects(self):
        """The sets are identical: uniform ones would fill in, these do not."""
        assert self.choices(Auto(FREE), ["identical"] * 3, 20000, 0.2) == [
            "dynamic",
            "split_allgather",
            "split_allgather",
        ]

    def test_what_calls_take_is_measured_where_it_is_not_given(self):
        auto = Auto()

        def one_rank(grid):
            auto(GOOD, grid.world)
            return auto.transport(grid.world)

        found = threads.run(3, 3, one_rank)
        assert found[0] == found[1] == found[2]
        assert all(link.bandwidth > 0 and link.latency >= 0 for link in found[0][:3]) and found[0].byte > 0

    def test_nothing_is_chosen_before_the_first_call(self):
        assert Auto(FREE).chosen(LoneCommunicator()) is None

    def test_messages_go_with_the_check_of_a_call_once_the_all_gather_was_chosen(self):
        """The second call is the check alone; if a rank has many more rows, all are sent after it."""
        few, more, many = (index_sets("overlapping", 3, 1000, density) for density in (0.01, 0.02, 0.3))
        calls = [few, few, more, many, few, few, [*few[:2], many[2]], few]
        auto = Auto(Transport(Link(1.0, 1e9), Link(1.0, 1e9), Link(1e-5, 1e9)))

        def one_rank(grid):
            found, counter = [], CountingCommunicator(grid.world)
            for sets in calls:
                before = counter.gathers
                total = auto(slices_of(sets[counter.rank], [1000]), counter)
                found.append((counter.gathers - before, dense_of(total, (1000,), "sum").tolist()))
            return found

        results = threads.run(3, 3, one_rank)
        for number, sets in enumerate(calls):
            total = expected_of([slices_of(each, [1000]) for each in sets], (1000,), "sum").tolist()
            assert [result[number] for result in results] == [((2, 1, 1, 2, 1, 1, 2, 1)[number], total)] * 3


def test_graphs_and_eager_code_know_of_each_others_calls():
    history = CallHistory()
    history.write(Calls(3, 7.5, 2))

    @tf.function
    def call():
        variable = history.variable()
        variable.assign(variable + [1, 0, -1])

    call()
    assert history.read() == Calls(4, 7.5, 1)
    history.write(Calls(5, 2.5, 3))
    call()
    assert history.read() == Calls(6, 2.5, 2)
