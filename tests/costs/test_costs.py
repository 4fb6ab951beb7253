"""The cost model: equal to the papers' equations, and with the orderings they state."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse import costs
from hvd_sparse.costs import Cluster, Link, collectives
from hvd_sparse.costs.collectives import Load, Transport

FREE = 1e30  # bytes per second: costs nothing
# CommLib 5.1: 16 nodes of 8 V100 with NVLink and 25 Gbit/s Ethernet, which one TCP connection does not fill.
COMMLIB = Cluster(16, 8, Link(1e-5, 60e9), Link(5e-5, 25e9 / 8, 1.2e9), 700e9)
sizes = st.integers(1, 10**9)
counts = st.integers(1, 64)
links = st.builds(Link, st.floats(0, 1e-2), st.floats(1e6, 1e11), st.just(math.inf), st.just(0.0))
clusters = st.builds(Cluster, counts, counts, links, links, st.floats(1e8, 1e12), st.just(0.0), st.none())


@given(clusters, sizes, st.floats(1e-4, 1))
def test_naive_allgather_is_equation_3_with_indices(cluster, size, density):
    free = cluster._replace(memory=FREE, local=1)
    k = costs.kept(size, density)
    alpha, beta = cluster.across.latency, 1 / cluster.across.bandwidth
    expected = (free.nodes - 1) * (alpha + 8 * beta * k)
    assert math.isclose(costs.seconds("topk", free, size, density), expected, rel_tol=1e-9, abs_tol=1e-15)


@given(clusters, sizes, st.floats(1e-4, 0.01))
def test_hitopk_is_equations_7_to_10(cluster, size, density):
    m, n = cluster.nodes, cluster.local
    shard = math.ceil(size / n)
    k = costs.kept(shard, density)
    inside, across = cluster.inside, cluster.across
    steps = costs.hitopk(cluster, size, density)
    scatter = (n - 1) * (inside.latency + 4 * shard / inside.bandwidth)
    assert math.isclose(steps["reduce-scatter"], scatter, rel_tol=1e-9, abs_tol=1e-15)
    passes = (12 + 4 * (n - 1)) * shard / cluster.memory  # gradient, residual in and out; one more pass per rank
    assert math.isclose(steps["selection"], passes + cluster.entry * k, rel_tol=1e-9, abs_tol=1e-15)
    exchanged = (m - 1) * (across.latency + 8 * k * n / across.bandwidth)  # n ranks share the node's link
    assert math.isclose(steps["across nodes"], exchanged, rel_tol=1e-9, abs_tol=1e-15)
    gathered = (n - 1) * (inside.latency + min(8 * m * k, 4 * shard) / inside.bandwidth)
    assert math.isclose(steps["all-gather"], gathered, rel_tol=1e-9, abs_tol=1e-15)


@given(clusters, sizes, st.floats(1e-4, 1), st.sampled_from(sorted(costs.MODELS)))
def test_a_faster_machine_is_never_slower(cluster, size, density, recipe):
    now = costs.seconds(recipe, cluster, size, density)
    assert now >= 0
    for faster in (
        cluster._replace(memory=2 * cluster.memory),
        cluster._replace(across=Link(cluster.across.latency / 2, 2 * cluster.across.bandwidth)),
        cluster._replace(inside=Link(cluster.inside.latency / 2, 2 * cluster.inside.bandwidth)),
    ):
        assert costs.seconds(recipe, faster, size, density) <= now * (1 + 1e-9)


@given(
    clusters, sizes, st.floats(1e-4, 1), st.sampled_from(["dense", "torus2d", "topk", "dropping", "hitopk", "blocks"])
)
def test_no_exchange_is_faster_than_its_bytes(cluster, size, density, recipe):
    sent = costs.link_bytes(recipe, cluster.nodes, cluster.local, size, density)
    taken = costs.seconds(recipe, cluster, size, density)
    assert taken >= sent / cluster.across.bandwidth * (1 - 1e-9)


@given(clusters, sizes, st.floats(1e-4, 1))
def test_dropping_is_naive_allgather_with_a_count_before_each_message(cluster, size, density):
    as_bytes = [costs.link_bytes(name, cluster.nodes, cluster.local, size, density) for name in ("dropping", "topk")]
    assert as_bytes[0] - as_bytes[1] == (0 if cluster.nodes == 1 else 8 * (cluster.ranks - 1))
    dropping, topk = costs.dropping(cluster, size, density), costs.topk(cluster, size, density)
    assert dropping["selection"] == topk["selection"] and dropping["scatter"] == topk["scatter"]
    assert dropping["all-gather"] >= topk["all-gather"]


@pytest.mark.parametrize("nodes, local", [(2, 2), (4, 1), (16, 8)])
def test_hitopk_sends_a_share_of_what_naive_allgather_sends(nodes, local):
    """(m - 1) / (m n - 1) at the same k, and 8 (m - 1) k_j bytes from each rank."""
    size, density = 10**6 * local, 0.01
    hitopk = costs.link_bytes("hitopk", nodes, local, size, density)
    naive = costs.link_bytes("topk", nodes, local, size, density)
    assert hitopk == local * 8 * (nodes - 1) * 10**4
    assert math.isclose(hitopk / naive, (nodes - 1) / (nodes * local - 1))


@pytest.mark.parametrize("size", [25 * 10**6, 110 * 10**6])
def test_the_orderings_of_figures_7_and_8(size):
    """HiTopKComm before 2DTAR before TreeAR before NaiveAG; its longest step is the one between nodes."""
    taken = {recipe: costs.seconds(recipe, COMMLIB, size, 0.01) for recipe in ("hitopk", "torus2d", "tree", "topk")}
    assert sorted(taken, key=taken.__getitem__) == ["hitopk", "torus2d", "tree", "topk"]
    steps = costs.hitopk(COMMLIB, size, 0.01)
    assert max(steps, key=steps.__getitem__) == "across nodes"


@given(clusters, sizes, st.floats(1e-4, 1), st.sampled_from(["dense", "torus2d", "topk", "dropping", "hitopk"]))
def test_rings_go_by_the_link_as_they_fill_it(cluster, size, density, recipe):
    twice = Link(cluster.across.latency / 2, 2 * cluster.across.bandwidth)
    as_measured = costs.MODELS[recipe](cluster._replace(reducing=twice), size, density, 4)
    expected = {
        "dense": cluster._replace(across=twice),
        "topk": cluster._replace(across=twice),
        "dropping": cluster._replace(across=twice),
        "torus2d": cluster._replace(across=twice),
        "hitopk": cluster,
    }
    assert as_measured == costs.MODELS[recipe](expected[recipe], size, density, 4)


@given(clusters, sizes, st.floats(1e-4, 1), st.sampled_from(sorted(costs.MODELS)))
def test_each_collective_is_agreed_on_once_however_many_messages_it_has(cluster, size, density, recipe):
    inside, across = cluster.inside._replace(call=1e3), cluster.across._replace(call=1e6)
    before, after = (
        costs.seconds(recipe, each, size, density) for each in (cluster, cluster._replace(inside=inside, across=across))
    )
    of_node, of_nodes = 1e3 * (cluster.local > 1), 1e6 * (cluster.nodes > 1)
    by_levels = {"torus2d": (2, 1), "hitopk": (2, 1), "blocks": (2, 2)}  # collectives inside each node and across
    inside_each, across_each = by_levels.get(recipe, (0, 0))
    calls = inside_each * of_node + across_each * of_nodes if recipe in by_levels else max(of_node, of_nodes)
    assert math.isclose(after - before, calls, abs_tol=1e-3)


@given(clusters, sizes, st.floats(1e-4, 1))
def test_what_is_kept_costs_time_when_it_is_selected_and_when_it_is_added(cluster, size, density):
    slow = cluster._replace(entry=1.0)
    shard = math.ceil(size / cluster.local)
    for recipe, count in (("topk", costs.kept(size, density)), ("hitopk", costs.kept(shard, density))):
        before, after = (costs.MODELS[recipe](each, size, density, 4) for each in (cluster, slow))
        assert after["selection"] == before["selection"] + count
        assert after["scatter"] == before["scatter"] + cluster.ranks * count


@given(st.floats(1, 1e6), st.floats(1.001, 1e3), st.integers(2, 64))
def test_a_universe_is_told_by_the_union_that_it_gives(kept, times, ranks):
    """SparCML B.1, and its inverse."""
    size = kept * times
    union = collectives.expected_union(kept, size, ranks)
    assert collectives.universe(kept, union, ranks) == pytest.approx(size, rel=1e-3) or union > 0.999 * ranks * kept


@pytest.mark.parametrize("collective", collectives.CANDIDATES)
def test_what_is_read_to_be_combined_costs_time_by_the_byte(collective):
    load, free = Load(4, 10**6, 1, 4, 1e4, 1e6, 1e6), Link(0.0, FREE)
    taken = [collectives.seconds(collective, load, Transport(free, free, free, byte)) for byte in (0.0, 1e-9, 2e-9)]
    assert taken[1] - taken[0] >= 1e-9 * load.message(load.kept)
    assert taken[2] - taken[0] == pytest.approx(2 * (taken[1] - taken[0]))


@pytest.mark.parametrize("ranks, wanted", [(1, 0), (2, 1), (3, 3), (4, 2), (5, 4), (6, 4), (8, 3), (9, 5)])
def test_recursive_doubling_takes_two_steps_more_where_ranks_are_no_power_of_two(ranks, wanted):
    """SparCML, Fig. 2: ranks beyond the power of two first send their data to another, and then get the result."""
    assert collectives.steps("recursive_doubling", ranks) == wanted


def test_one_rank_exchanges_nothing():
    alone = Cluster(1, 1, Link(1.0, 1.0), Link(1.0, 1.0), FREE)
    recipes = ("dense", "tree", "torus2d", "topk", "hitopk", "blocks")
    assert all(costs.seconds(recipe, alone, 10**6, 0.01) < 1e-9 for recipe in recipes)
    load = collectives.Load(1, 1000, 1, 4, 10.0, 1000.0, 500.0)
    transport = collectives.Transport(Link(1.0, 1.0), Link(1.0, 1.0), Link(1.0, 1.0), 1.0)
    assert all(collectives.seconds(each, load, transport) == 0 for each in collectives.CANDIDATES)
    assert all(collectives.sent(each, load) == 0 for each in collectives.SENT)


@pytest.mark.parametrize(
    "ask", [lambda: costs.seconds("other", COMMLIB, 1, 1.0), lambda: costs.link_bytes("tree", 2, 1, 1, 1.0)]
)
def test_recipes_without_a_model_are_named(ask):
    with pytest.raises(ValueError, match="Expected"):
        ask()


@pytest.mark.parametrize("recipe, share", [("dense", 0.5), ("tree", 0.5), ("torus2d", 0.5), ("topk", 0.75)])
def test_16_bit_values_are_half_the_bytes_and_indices_stay(recipe, share):
    free = COMMLIB._replace(inside=Link(0.0, 60e9), across=Link(0.0, 3e9), memory=FREE)
    whole, half = (costs.seconds(recipe, free, 8 * 10**6, 0.01, element) for element in (4, 2))
    assert math.isclose(half, share * whole, rel_tol=1e-9)


def test_hitopk_with_16_bit_values():
    steps = [costs.hitopk(COMMLIB._replace(across=Link(0.0, 3e9)), 8 * 10**6, 0.01, element) for element in (4, 2)]
    assert math.isclose(steps[1]["across nodes"], 0.75 * steps[0]["across nodes"])
    assert math.isclose(steps[1]["selection"], steps[0]["selection"])


def parents(members):
    """The two trees of NCCL's double binary tree: each member's parent, None at the root."""
    tree = [None] * members
    for rank in range(1, members):
        bit = rank & -rank
        up = (rank ^ bit) | (bit << 1)
        tree[rank] = up if up < members else rank ^ bit
    if members % 2:
        second = {(rank + 1) % members: up if up is None else (up + 1) % members for rank, up in enumerate(tree)}
    else:
        second = {members - 1 - rank: up if up is None else members - 1 - up for rank, up in enumerate(tree)}
    return dict(enumerate(tree)), second


@pytest.mark.parametrize("nodes", range(2, 70))
def test_the_tree_carries_what_the_busiest_node_of_a_double_binary_tree_sends(nodes):
    """Each tree carries half of the vector, to the parent and to every child."""
    sent = [0.0] * nodes
    for tree in parents(nodes):
        for child, parent in tree.items():
            if parent is not None:
                sent[child] += 0.5
                sent[parent] += 0.5
    cluster = Cluster(nodes, 1, Link(0.0, FREE), Link(0.0, 4.0), FREE)
    carried = costs.seconds("tree", cluster, 1000, 1.0) / 1000
    assert max(sent) <= carried <= (4 / 3 if nodes == 3 else 1) * max(sent)
