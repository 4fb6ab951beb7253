"""How ranks are grouped into nodes, and the environment that hosts get before Horovod starts."""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
import time
import urllib.request

import pytest
from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
from horovod.runner.http.http_server import KVStoreServer, RendezvousServer

from hvd_sparse.transport import host_names, launcher_store, nodes
from hvd_sparse.transport.launcher_store import Store
from hvd_sparse.transport.process_sets import DYNAMIC_VARIABLE
from tests.parallel.launch import ROOT

HERE = {"machine": "here", "unknown": None, "loopback": None}
THERE = {"machine": "there", "unknown": None, "loopback": None}
LOOPBACK = {"machine": "there", "unknown": None, "loopback": "there -> 127.0.1.1"}
UNKNOWN = {"machine": "nowhere", "unknown": "nowhere", "loopback": None}


def places(hosts, local_size=None):
    return [{"host": host, "local_size": local_size} for host in hosts]


@pytest.mark.parametrize(
    "hosts, local_size, rows",
    [
        ("a", None, [[0]]),
        ("aabb", None, [[0, 1], [2, 3]]),
        ("abab", None, [[0, 2], [1, 3]]),
        ("aaaa", 2, [[0, 1], [2, 3]]),
        ("aaaa", 1, [[0], [1], [2], [3]]),
        ("aaaabb", 2, [[0, 1], [2, 3], [4, 5]]),
        ("ababaa", 2, [[0, 2], [4, 5], [1, 3]]),
    ],
)
def test_ranks_are_grouped_by_host_and_size(hosts, local_size, rows):
    assert nodes.arrange(places(hosts, local_size)) == rows


def test_ranks_across_nodes_stand_in_the_order_in_which_horovod_numbers_a_set():
    rows = nodes.arrange(places("ababaa", 2))
    assert nodes.columns(rows) == [[0, 1, 4], [2, 3, 5]]


@pytest.mark.parametrize(
    "hosts, local_size, told",
    [
        ("aab", None, r"unequal size \(a: 2, b: 1 ranks\).*same number of ranks on every host"),
        ("aab", 2, r"local_size = 2 does not divide .*\(a: 2, b: 1\).*choose a divisor"),
        ("aaa", 2, "local_size = 2 does not divide"),
        ("aa", 0, "local_size = 0 does not divide"),
        ("aa", -1, "local_size = -1 does not divide"),
    ],
)
def test_what_cannot_be_a_grid_is_refused(hosts, local_size, told):
    with pytest.raises(ValueError, match=told):
        nodes.arrange(places(hosts, local_size))


def test_ranks_must_ask_for_the_same_size():
    with pytest.raises(ValueError, match="rank 0: 1, rank 1: 2"):
        nodes.arrange([{"host": "a", "local_size": 1}, {"host": "a", "local_size": 2}])


def test_horovods_numbers_need_a_start():
    """In a subprocess, as other tests start Horovod in this one."""
    asks = """
from hvd_sparse import topology
assert topology.world().size == 1
for number in (topology.rank, topology.size, topology.local_rank, topology.local_size):
    try:
        number()
    except ValueError as error:
        print(error)
"""
    ended = subprocess.run([sys.executable, "-c", asks], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ended.stdout.count("call hvd_sparse.init() first") == 4


@pytest.mark.parametrize("reports", [[HERE], [HERE, THERE], [HERE, HERE], [LOOPBACK], [LOOPBACK, LOOPBACK]])
def test_hosts_that_find_each_other_are_let_through(reports):
    """Also hosts whose names are loopback addresses, as long as all of them are the same machine."""
    assert host_names.fault(reports) is None


@pytest.mark.parametrize("reports", [[HERE, LOOPBACK], [LOOPBACK, HERE, THERE]])
def test_a_loopback_name_among_several_machines_is_named_with_a_remedy(reports):
    text = host_names.fault(reports)
    assert "there -> 127.0.1.1" in text and "/etc/hosts on every host" in text


@pytest.mark.parametrize("reports", [[UNKNOWN], [HERE, UNKNOWN], [LOOPBACK, HERE, UNKNOWN]])
def test_a_name_without_an_address_is_named_with_a_remedy_even_on_one_machine(reports):
    text = host_names.fault(reports)
    assert "does not resolve there (nowhere)" in text and "its /etc/hosts" in text


@pytest.fixture
def job(monkeypatch):
    """The environment of rank 0 on the first of two hosts, with a launcher's store."""
    server = KVStoreServer(verbose=0)
    environment = {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(server.start_server()),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CROSS_SIZE": "2",
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_RANK": "0",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    port = environment["HOROVOD_GLOO_RENDEZVOUS_PORT"]
    yield Store(f"http://127.0.0.1:{port}/scope")
    server.shutdown_server()


def test_hosts_that_cannot_find_each_other_are_an_error(job):
    host_names.check([HERE, THERE])
    with pytest.raises(ValueError, match="there -> 127.0.1.1"):
        host_names.check([HERE, LOOPBACK])


def test_with_mpi_names_are_not_checked(job, monkeypatch):
    monkeypatch.setenv("HOROVOD_CONTROLLER", "mpi")
    host_names.check([HERE, LOOPBACK])


# ---- environment before Horovod starts ----


def test_all_ranks_get_what_all_told_however_late_one_comes(job):
    with concurrent.futures.ThreadPoolExecutor() as ranks:
        early = [ranks.submit(job.everyone, rank, 3, {"rank": rank}) for rank in (0, 2)]
        time.sleep(0.5)
        assert not any(each.done() for each in early)
        told = [{"rank": rank} for rank in range(3)]
        assert job.everyone(1, 3, {"rank": 1}) == told
        assert [each.result() for each in early] == [told, told]


@pytest.mark.parametrize("present", [(0, 2), (1, 2)])
def test_ranks_that_are_missing_are_named_once_and_then_an_error_on_all(job, monkeypatch, capsys, present):
    monkeypatch.setattr(launcher_store, "NAMED_AFTER", 0.2)
    monkeypatch.setenv(launcher_store.START_VARIABLE, "0.6")
    missing = ({0, 1, 2} - set(present)).pop()

    def told(rank):
        with pytest.raises(RuntimeError) as raised:
            job.everyone(rank, 3, rank)
        return str(raised.value)

    with concurrent.futures.ThreadPoolExecutor() as ranks:
        texts = set(ranks.map(told, present))
    (text,) = texts
    assert text.startswith(f"Rank {missing} of 3 did not call hvd.init within 0.6 s of the others: look for what ended")
    (warned,) = capsys.readouterr().err.splitlines()
    assert warned.startswith(
        f"hvd_sparse: waiting for rank {missing} of 3 to call hvd.init, for 0.2 s so far, and no longer than"
    )


@pytest.mark.parametrize("text", ["soon", "-1", "0", "nan", "inf"])
def test_a_time_limit_that_is_none_is_refused(job, monkeypatch, text):
    monkeypatch.setenv(launcher_store.START_VARIABLE, text)
    with pytest.raises(ValueError, match=f"seconds above 0 in HVD_SPARSE_START_TIMEOUT, got '{text}'"):
        job.everyone(0, 1, None)


def test_ranks_of_a_group_gather_what_each_tells_also_nothing(job):
    """As ranks 4 and 6, of which the first collects; the other has told by then."""
    job.put(6, [None])
    assert job.gather(4, [4, 6], {"told": 1}) == [{"told": 1}, None]
    assert job.gather(6, [4, 6], None) == [{"told": 1}, None]


def test_a_rank_that_is_missing_is_the_same_error_on_all(job, monkeypatch):
    monkeypatch.setattr(launcher_store, "CONNECTED_PATIENCE", 0.2)
    for rank in (4, 6):
        with pytest.raises(
            RuntimeError, match=r"Of the ranks \[4, 6, 7\], \[7\] did not answer within 0.2 s"
        ) as raised:
            job.put(6, [1])
            job.gather(rank, [4, 6, 7], 1)
        assert "look for their error" in str(raised.value)


def test_of_a_group_whose_first_rank_is_missing_that_rank_is_named(job, monkeypatch):
    monkeypatch.setattr(launcher_store, "CONNECTED_PATIENCE", 0.2)
    with pytest.raises(RuntimeError, match=r"Of the ranks \[4, 6\], \[4\] did not answer"):
        job.gather(6, [4, 6], 1)


def test_ranks_that_come_and_go_are_not_waited_for_once_one_has_ended(job, monkeypatch):
    job.put("0", ["place of rank 0"])
    ended = Store(f"{job.url.rpartition('/')[0]}/ended")
    ended.put("worker", "host-3:1")
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    for rank in (0, 1):
        with pytest.raises(launcher_store.RanksMissingError, match=r"The process host-3:1 \(host and local rank\) has"):
            job.everyone(rank, 3, "place")
    monkeypatch.delenv("HOROVOD_ELASTIC")
    job.put(2, ["place of rank 2"])
    assert job.everyone(0, 3, "place of rank 0") == ["place of rank 0", "place", "place of rank 2"]


# ---- addresses of an earlier start ----


@pytest.fixture
def launcher():
    """The store of horovodrun for two ranks on one host."""
    server = RendezvousServer()
    port = server.start()
    server.init(get_host_assignments([HostInfo("here", 2)], 2, 2))
    yield f"http://127.0.0.1:{port}"
    server.stop()


def delete(url):
    urllib.request.urlopen(urllib.request.Request(url, method="DELETE"))


def ranks_find_each_other(launcher, racing):
    """What two ranks put and delete; if `racing`, one finishes all scopes before the other finishes its host's."""
    for scope, ranks in (("global", (0, 1)), ("local_here", (0, 1)), ("cross_0", (0,)), ("cross_1", (0,))):
        for rank in ranks:
            Store(f"{launcher}/{scope}").put(rank, "an address")
    for key in ("global/0", "global/1", "local_here/0"):
        delete(f"{launcher}/{key}")
    for key in ("cross_0/0", "local_here/1") if racing else ("local_here/1", "cross_0/0"):
        delete(f"{launcher}/{key}")
    delete(f"{launcher}/cross_1/0")


def left(launcher):
    scopes = {"global": 2, "local_here": 2, "cross_0": 1, "cross_1": 1}
    return {
        f"{scope}/{rank}" for scope, ranks in scopes.items() for rank in range(ranks) if there(launcher, scope, rank)
    }


def there(launcher, scope, rank):
    try:
        return bool(Store(f"{launcher}/{scope}").get(rank, patience=0.0))
    except TimeoutError:
        return False


def forget(launcher, monkeypatch, rank):
    port = launcher.rpartition(":")[2]
    places = {"RANK": rank, "LOCAL_RANK": rank, "CROSS_RANK": 0, "SIZE": 2, "HOSTNAME": "here", "CONTROLLER": "gloo"}
    for name, value in {**places, "GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "GLOO_RENDEZVOUS_PORT": port}.items():
        monkeypatch.setenv(f"HOROVOD_{name}", str(value))
    launcher_store.forget_addresses()


@pytest.mark.parametrize("racing", [False, True])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_addresses_are_forgotten_whatever_the_order_in_which_ranks_were_done(launcher, monkeypatch, racing, order):
    ranks_find_each_other(launcher, racing)
    assert left(launcher) == ({"local_here/0", "local_here/1"} if racing else set())
    for rank in order:
        forget(launcher, monkeypatch, rank)
    assert not left(launcher)
    ranks_find_each_other(launcher, racing=False)
    assert not left(launcher), "what was asked for before counts no more"


@pytest.mark.parametrize("text, passed, asked", [("3", None, 3), ("3", 2, 2), ("x", None, 0), ("", None, None)])
def test_the_variable_asks_for_the_size_of_a_node_where_init_does_not(text, passed, asked, monkeypatch):
    """A value that is not a number becomes 0, which all ranks refuse together."""
    monkeypatch.setenv(nodes.LOCAL_SIZE_VARIABLE, text)
    assert nodes.place(passed)["local_size"] == asked


@pytest.mark.parametrize("own", ["", "1"])
def test_a_job_that_is_started_by_a_process_with_horovod_does_not_inherit_how_that_was_started(own):
    """A notebook that calls init and then starts a job: its ranks would ask for new process sets in each cycle."""
    script = """
import os
import hvd_sparse as hvd
from hvd_sparse.transport.process_sets import DYNAMIC_VARIABLE, is_dynamic
for asked in (None, "dynamic"):
    hvd.init(process_sets=asked)
    print(is_dynamic(), os.environ.get(DYNAMIC_VARIABLE), end=" ")
    hvd.shutdown()
print(is_dynamic())
"""
    environment = {key: value for key, value in os.environ.items() if key != DYNAMIC_VARIABLE}
    environment |= {DYNAMIC_VARIABLE: own} if own else {}
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["True", str(own or None)] * 2 + [str(bool(own))], ended.stderr
