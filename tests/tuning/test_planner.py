"""The planner's choices, its table, and how it parses its arguments."""

import pytest

from hvd_sparse import costs
from hvd_sparse.costs import Cluster, Link
from hvd_sparse.transport.communicator import Grid
from hvd_sparse.tuning import planner

SLOW = Cluster(16, 8, Link(1e-5, 60e9), Link(5e-5, 25e9 / 8), 300e9)
WORDS = ["nodes=16", "local=8", "inter=25Gbit", "intra=480Gbit", "model=resnet50"]


def test_the_fastest_is_chosen_and_the_reason_says_by_how_much():
    chosen = planner.plan(SLOW, 25_000_000, 0.01)
    assert chosen.recipe == min(chosen.seconds, key=chosen.seconds.__getitem__) == "blocks"
    assert planner.plan(SLOW, 25_000_000, 0.01, planner.CANDIDATES).recipe == "hitopk"
    assert set(chosen.seconds) == {*planner.CANDIDATES, "blocks"}
    assert "times as fast as" in chosen.reason and "MB" in chosen.reason


def test_a_network_that_keeps_up_is_left_dense():
    fast = Cluster(4, 1, Link(0.0, 1e12), Link(1e-6, 1e12), 1e9)
    assert planner.plan(fast, 25_000_000, 0.1).recipe == "dense"
    assert planner.plan(fast, 1, 1.0, ["topk"]).reason == "topk: the only candidate"


def test_words_become_a_cluster():
    cluster, size = planner.simulated(WORDS)
    assert (cluster.nodes, cluster.local, size) == (16, 8, planner.MODEL_SIZES["resnet50"])
    assert cluster.across.bandwidth == 25e9 / 8 and cluster.inside.bandwidth == 480e9 / 8
    cluster, size = planner.simulated([*WORDS[:-1], "size=1000", "inter_latency=1ms", "memory=2GB"])
    assert (cluster.across.latency, cluster.memory, size) == (1e-3, 2e9, 1000)


@pytest.mark.parametrize(
    "words, told",
    [
        (WORDS[1:], "Expected also nodes"),
        ([*WORDS, "color=red"], "one of nodes, local"),
        ([*WORDS, "nodes"], "NAME=VALUE"),
        ([*WORDS[:-1]], "either model=NAME or size"),
        ([*WORDS, "size=5"], "either model=NAME or size"),
        ([*WORDS[:-1], "model=lenet"], "resnet50"),
        (["nodes=0", *WORDS[1:]], "at least 1"),
        ([*WORDS[:2], "inter=fast", *WORDS[3:]], "number and one of"),
    ],
)
def test_words_that_cannot_be_are_refused(words, told, capsys):
    with pytest.raises(ValueError, match=told):
        planner.simulated(words)
    with pytest.raises(SystemExit):
        planner.main(["--simulate", *words])


def test_the_command_prints_a_row_a_density(capsys):
    planner.main(["--simulate", *WORDS])
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "16 nodes of 8 ranks, 25,600,000 elements"
    assert [line.split()[0] for line in printed[-3:]] == ["0.001", "0.01", "0.1"]
    choices = [line.split(": ")[0].split()[-1] for line in printed[-3:]]
    assert choices == ["hitopk", "blocks", "blocks"], "on sixteen nodes pairs of index and value are no bargain"


def test_one_rank_is_measured_without_a_network():
    told = []
    cluster = planner.measure(Grid.lone(), told.append)
    assert (cluster.nodes, cluster.local) == (1, 1) and cluster.memory > 0
    assert told == ["selection ..."]
    assert costs.seconds("hitopk", cluster, 1000, 0.01) > 0


@pytest.mark.parametrize("nodes, local, told", [(16, 1, "one rank a node"), (1, 8, "a single node")])
def test_the_table_names_only_links_that_there_are(nodes, local, told):
    lines = planner.table(SLOW._replace(nodes=nodes, local=local), 1000).splitlines()
    assert told in lines and sum("Gbit/s" in line for line in lines) == 1
