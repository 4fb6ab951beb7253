"""horovodrun with interfaces that may have another name on each host, and without a traceback after a rank's error.

    python examples/launch/horovodrun.py -np 2 -H a:1,b:1 --network-interfaces 10.1.0.0/16 --gloo COMMAND...

Takes horovodrun's options; --network-interfaces may list networks, too, and each host takes the first that it has.
The launching machine listens in one of these networks, or else where it has a way to the hosts, however its interfaces
are called. The exit status is 1 if a rank failed, as horovodrun's.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import sys

from horovod.runner import launch
from horovod.runner.common.util import hosts
from horovod.runner.util import network
from interfaces import Interface, described, is_network, leading_to, named  # beside this file

FAILED = re.compile(r"Process name: (\d+)\nExit code: (-?\d+)")


def remote_addresses(options: argparse.Namespace) -> list[str]:
    """The addresses of all hosts, as resolved here; empty if all are this machine or some have none."""
    if options.hostfile and not options.hosts:
        options.hosts = hosts.parse_host_files(options.hostfile)
    names, _ = hosts.parse_hosts_and_slots(options.hosts) if options.hosts else ([], {})
    if not network.filter_local_addresses(names):
        return []
    addresses = [network.resolve_host_address(name) for name in names]
    return [address for address in addresses if address]


def choose_interfaces(options: argparse.Namespace, addresses: list[str]) -> None:
    """Has each rank look for its host's interface, and Horovod's server listen where the hosts can reach it."""
    wanted = sorted(options.nics or ())  # horovodrun keeps no order
    try:
        networks = [each for each in wanted if is_network(each)]
    except ValueError as error:
        sys.exit(f"--network-interfaces takes names and IPv4 networks such as 10.1.0.0/16: {error}.")
    own = named(networks) or leading_to(addresses)
    if own is None:
        sys.exit(f"No interface of this machine leads to the hosts ({', '.join(addresses)}); there are {described()}.")
    _listen_at(own)
    options.nics = {own.name}
    program = pathlib.Path(__file__).with_name("interfaces.py")
    order = [*networks, *(each for each in wanted if each not in networks)]
    options.command = [sys.executable, str(program), ",".join(order), ",".join(addresses), *options.command]


def _listen_at(own: Interface) -> None:
    network.get_driver_ip = lambda interfaces: own.address  # Horovod would take the interface's last address


def told(error: Exception) -> str:
    """One sentence for an error of horovodrun's."""
    failed = FAILED.search(str(error))
    if not failed:
        return f"horovodrun: {error}"
    return f"Rank {failed[1]} ended first, with exit code {failed[2]}, and the job was stopped; its error stands above."


def main() -> None:
    """Starts the ranks and waits for them."""
    options = launch.parse_args()
    addresses = remote_addresses(options)
    if addresses:
        choose_interfaces(options, addresses)
    try:
        launch._run(options)
    except (RuntimeError, ValueError) as error:
        sys.exit(told(error))


if __name__ == "__main__":
    main()
