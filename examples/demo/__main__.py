"""Four ranks on two nodes train on real images over a slow network, with one recipe after another: `make demo`.

Each recipe trains the same network of 1.1 million parameters, with the same settings, on crops of the photographs that
scikit-image and scikit-learn ship; the held-out crops come from the other halves of the photographs. The nodes are
network namespaces on this machine, joined by links of 100 Mbit/s, which are removed at the end; they need root, or a
kernel that gives ordinary users namespaces of their own. DEMO_NETWORK=1gbit sets another rate. With DEMO_NETWORK=none,
or if the kernel forbids namespaces, the ranks use this machine's loopback, where sending less gains nothing. Writes
results/demo.json and results/demo.png.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable

from benchmarks.machines import cluster, sandbox
from examples.demo import report
from examples.demo.settings import EPOCHS, LOCAL_SIZE, NODES, RATE, RECIPES, STEPS

RESULTS = pathlib.Path("results")
LIMIT = 1200.0  # seconds, however slow the machine
QUIET = {
    "HVD_SPARSE_LOCAL_SIZE": str(LOCAL_SIZE),
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "PYTHONUNBUFFERED": "1",
}


def main() -> None:
    """Starts the ranks, shows what rank 0 prints, and reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=EPOCHS, help=f"of {STEPS} steps each (default: {EPOCHS})")
    options = parser.parse_args()
    enter_sandbox()
    rate, told = network()
    print(
        f"{NODES * LOCAL_SIZE} ranks on {NODES} nodes of {LOCAL_SIZE} train a network on crops of photographs, with "
        f"{', '.join(RECIPES)} in turn; three to five minutes on two cores.\n{told}",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        runs = pathlib.Path(folder, "runs.json")
        command = [sys.executable, "-m", "examples.demo.rank", str(runs), str(options.epochs)]
        try:
            failed = on_loopback(command) if rate is None else on_links(command, rate)
        except KeyboardInterrupt:
            sys.exit("Stopped; the network has been removed.")
        if failed or not runs.exists():
            sys.exit(f"The ranks ended with {failed}; see their output above.")
        summary = report.summarise(json.loads(runs.read_text()), rate)
    RESULTS.mkdir(exist_ok=True)
    part = RESULTS / "demo.json.part"
    part.write_text(json.dumps(summary, indent=1) + "\n")
    part.replace(RESULTS / "demo.json")
    report.draw(summary, RESULTS / "demo.png")
    print("\n".join(report.table(summary)))
    print(f"Written to {RESULTS}/demo.json and {RESULTS}/demo.png")


def enter_sandbox() -> None:
    """Goes on in a user namespace of its own, if it takes one to make the network."""
    if os.environ.get("DEMO_NETWORK") == "none" or os.geteuid() == 0 or sandbox.unavailable() is not None:
        return
    sandbox.enter([sys.executable, "-m", "examples.demo", *sys.argv[1:]])


def network() -> tuple[str | None, str]:
    """The rate of the links, or None without links, and a message about the network for the user."""
    asked = os.environ.get("DEMO_NETWORK", RATE)
    if asked == "none":
        return None, f"DEMO_NETWORK=none: the ranks use this machine's loopback. {report.ON_LOOPBACK}"
    try:
        cluster.bits_per_second(asked)
    except ValueError as error:
        sys.exit(f"DEMO_NETWORK={asked}: {error}")
    missing = cluster.unavailable()
    if missing is not None:
        without = sandbox.unavailable()
        instead = f"A namespace of your own instead: {without}. " if without else ""
        return None, f"{missing} {instead}The ranks use this machine's loopback. {report.ON_LOOPBACK}"
    return asked, (
        f"The nodes are network namespaces on this machine, joined by links of {asked}; they are removed at the end"
        f"{' (they are in a user namespace, as you are not root)' if sandbox.is_within() else ''}. "
        "Set DEMO_NETWORK=none to run without them."
    )


def on_links(command: list[str], rate: str) -> str | None:
    """Runs the ranks behind shaped links; returns how they failed, or None if they did not."""
    with cluster.Cluster(NODES, LOCAL_SIZE, rate) as nodes:
        statuses = nodes.run(command, QUIET, LIMIT)
    failed = {rank: status for rank, status in enumerate(statuses) if status}
    return f"status {failed} (by rank)" if failed else None


def on_loopback(command: list[str]) -> str | None:
    """Runs the ranks under horovodrun; returns how they failed, or None if they did not."""
    horovodrun = pathlib.Path(__file__).parents[1] / "launch" / "horovodrun.py"
    launcher = [sys.executable, str(horovodrun), "-np", str(NODES * LOCAL_SIZE), "--gloo"]
    with subprocess.Popen(
        [*launcher, *command],
        env={**os.environ, **QUIET},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as ranks:
        others = show(ranks.stdout or ())
    return f"status {ranks.returncode}:\n{others}\n" if ranks.returncode else None


def show(lines: Iterable[str]) -> str:
    """Prints what rank 0 prints, and returns the end of all other output, to be shown if the ranks fail."""
    others = []
    for line in lines:
        own = re.match(r"\[0\]<stdout>:(.*)", line)
        if own:
            print(own[1], flush=True)
        else:
            others.append(line)
    return "".join(others[-60:])


if __name__ == "__main__":
    main()
