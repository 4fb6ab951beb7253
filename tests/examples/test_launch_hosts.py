"""horovodrun.sh over ssh to two hosts, whose interfaces have other names than this machine's."""

import sys

import pytest

from tests.examples.launching import run
from tools.launchers import hosts

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(hosts.unavailable() is not None, reason=str(hosts.unavailable())),
]
SHOWN = "HOROVOD_RANK", "HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME", "HOROVOD_GLOO_RENDEZVOUS_ADDR"


@pytest.fixture(scope="module")
def two():
    with hosts.made() as made:
        yield made


def start(two, interfaces):
    both = ",".join(f"{address}:1" for address in two.addresses)
    shows = f"import os; print(*(os.environ[name] for name in {SHOWN}))"
    over_ssh = ["--ssh-port", str(hosts.PORT), "--ssh-identity-file", str(two.key)]
    environment = {"PATH": two.path}
    command = ["-H", both, *over_ssh, *interfaces, "--", sys.executable, "-c", shows]
    return run("horovodrun.sh", *command, environment=environment, limit=120)


@pytest.mark.parametrize("interfaces", [None, "eth0", "ib0,eth0", "10.78.0.0/16"])
def test_each_host_has_its_own_interface_and_this_machine_answers(two, interfaces):
    ended = start(two, ["--network-interfaces", interfaces] if interfaces else [])
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for rank in (0, 1):
        assert f"{rank} eth0 eth0 {two.own_address}" in ended.stdout


def test_a_host_without_such_an_interface_says_which_it_has(two):
    ended = start(two, ["--network-interfaces", "ib0,10.99.0.0/16"])
    assert ended.returncode == 1 and "Traceback" not in ended.stderr
    assert "no interface is or has an address in 10.99.0.0/16,ib0; there are lo" in ended.stderr
    assert any(f"eth0 ({address})" in ended.stderr for address in two.addresses)


def test_what_is_no_network_is_refused(two):
    ended = start(two, ["--network-interfaces", "10.1.0.0/99"])
    assert ended.returncode == 1 and "networks such as 10.1.0.0/16" in ended.stderr
