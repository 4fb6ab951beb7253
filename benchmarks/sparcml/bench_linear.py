"""Linear models trained as by SparCML's MPI-OPT, sparse exchange against dense (8.2, Table 2): `make bench-linear`.

Four nodes of one rank are network namespaces behind shaped links (benchmarks/machines/cluster.py), so root is needed.
The data is made by examples/make_ngrams.py from the Python files of this machine: 16.6M dimensions, like Webspam, for
stochastic gradient descent, and 3.2M, like URL, for coordinate descent. A row is one launch of examples/linear.py;
dense and sparse launches take turns. Times are per pass, averaged over all passes but the first, which allocates
buffers: the slowest rank's total time, and the ranks' mean time in the exchange. Ranks synchronise before each exchange
(--meet), so that waiting for the slowest rank's arithmetic is measured separately. Building the dense vector is not
counted in the dense all-reduce.

The losses after each pass are compared as well, and the accuracy on held-out files is compared with that of
scikit-learn's SGDClassifier with the same loss, regularisation and files.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import tempfile
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from sklearn.linear_model import SGDClassifier

from benchmarks.machines.cluster import Cluster, bits_per_second, raw_rate, unavailable
from benchmarks.reporting import report, timing, writing
from examples import make_ngrams
from examples.linear_models import libsvm
from hvd_sparse.tuning import cache

NODES = 4
DIMENSIONS = {"sgd": 16_609_143, "cd": 3_231_961}  # Webspam, URL
L2 = 1e-4
DENSE, GATHERED = "dense", "allgather"
_TIMES, _GATHER_TIMES, _LOSS, _POINT = 10.0, 4.0, 1e-6, 1.0
_LIMIT = 600.0  # seconds for one launch


class Plan(NamedTuple):
    """What to measure.

    Attributes:
        characters: number of characters of a file that n-grams are taken from.
        exchanges: kinds of exchange for gradient descent, the dense one first.
        repetitions: number of runs of each timed launch.
        passes: passes per timed launch.
        learnt: passes of the launch whose accuracy is compared.
        iterations: iterations per pass of coordinate descent.
        files: maximum number of files; None for all.
    """

    characters: int = 2_000
    exchanges: tuple[str, ...] = (DENSE, "auto", GATHERED)
    repetitions: int = 2
    passes: int = 5
    learnt: int = 20
    iterations: int = 40
    files: int | None = None


WHOLE = Plan()
QUICK = Plan(1_000, (DENSE, "auto"), 1, 2, 5, 10, 2_000)


def make_data(folder: pathlib.Path, plan: Plan) -> dict[str, dict[str, str]]:
    """The options of examples/linear.py that name the data of each method."""
    options = {}
    for method, dimensions in DIMENSIONS.items():
        words = ["--out", str(folder / method), "--dimensions", str(dimensions), "--characters", str(plan.characters)]
        make_ngrams.main(words + (["--most", str(plan.files)] if plan.files else []))
        train, test = (str(folder / method / name) for name in ("train.svm", "test.svm"))
        options[method] = {"train": train, "test": test, "features": str(dimensions), "method": method, "l2": str(L2)}
    return options


def launch(cluster: Cluster, folder: pathlib.Path, options: dict[str, str]) -> dict[str, Any]:
    """The figures of one launch of examples/linear.py; RuntimeError if a rank fails."""
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    path = folder / "figures.json"
    path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "examples.linear", *words, "--meet", "--json", str(path)]
    # Link measurements are kept for this cluster only: the next one has the same addresses and other links.
    statuses = cluster.run(command, {cache.CACHE_VARIABLE: str(folder)}, _LIMIT)
    if any(statuses):
        raise RuntimeError(f"the ranks of {' '.join(words)} ended with {statuses}")
    return json.loads(path.read_text())


def measure(plan: Plan, rate: str) -> dict[str, Any]:
    """Makes the data and runs all launches."""
    with tempfile.TemporaryDirectory() as name, Cluster(NODES, 1, rate) as cluster:
        folder = pathlib.Path(name)
        data = make_data(folder, plan)
        reached = raw_rate(cluster)
        print(f"{NODES} ranks, {rate}: one connection reaches {reached / 1e6:,.0f} Mbit/s", flush=True)
        passes = {"passes": str(plan.passes)}
        timed = [{**data["sgd"], **passes, "exchange": each, "learning-rate": "4"} for each in plan.exchanges]
        descent = {**data["cd"], **passes, "iterations": str(plan.iterations)}
        timed += [{**descent, "exchange": each} for each in (DENSE, GATHERED)]
        runs = [launch(cluster, folder, options) for _ in range(plan.repetitions) for options in timed]
        longer = {"passes": str(plan.learnt), "learning-rate": "16", "batch-size": "250", "exchange": "auto"}
        learnt = launch(cluster, folder, {**data["sgd"], **longer})
        theirs = scikit_learn(data["sgd"])
        return {"rate": rate, "reached": reached, "runs": runs, "learnt": learnt, "scikit_learn": theirs}


def scikit_learn(options: dict[str, str]) -> float:
    """The accuracy of SGDClassifier on the same files."""
    features = int(options["features"])
    train, test = (libsvm.read([pathlib.Path(options[name])], features=features) for name in ("train", "test"))
    rival = SGDClassifier(loss="log_loss", alpha=L2, max_iter=20, tol=None, random_state=0)
    return float(rival.fit(train.matrix, train.labels).score(test.matrix, test.labels))


# ---- results ----


def rows_of(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per method and exchange: means over passes, medians over launches."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for method, exchange in dict.fromkeys((run["method"], run["exchange"]) for run in runs):
        same = [run for run in runs if (run["method"], run["exchange"]) == (method, exchange)]
        medians = {name: float(np.median([_warm(run, name) for run in same])) for name in ("seconds", "communication")}
        each = [_warm(run, "communication") for run in same]
        counted = {name: same[0][name] for name in ("steps", "entries", "entries_of_all", "passes", "weights")}
        rows[method, exchange] = {"method": method, "exchange": exchange, **medians, "each": each, **counted}
    for (method, _), row in rows.items():
        row["times_dense"] = rows[method, DENSE]["communication"] / row["communication"]
        losses = [[each["loss"] for each in kept["passes"]] for kept in (row, rows[method, DENSE])]
        row["loss_gap"] = float(np.max(np.abs(np.subtract(*losses)) / losses[1]))
    return list(rows.values())


def _warm(run: dict[str, Any], name: str) -> float:
    """The mean over all passes but the first."""
    return float(np.mean([each[name] for each in run["passes"][1:]]))


def verdicts(figures: dict[str, Any]) -> list[report.Verdict]:
    """The targets, met or missed."""
    rows = rows_of(figures["runs"])
    sparse = [row for row in rows if row["method"] == "sgd" and row["exchange"] != DENSE]
    best = max(sparse, key=lambda row: row["times_dense"])
    gap = max(row["loss_gap"] for row in sparse)
    ours, theirs = 100 * figures["learnt"]["passes"][-1]["test_accuracy"], 100 * figures["scikit_learn"]
    descent = {row["exchange"]: row for row in rows if row["method"] == "cd"}
    times = descent[GATHERED]["times_dense"]
    same = descent[GATHERED]["weights"] == descent[DENSE]["weights"]
    chosen = next(row for row in sparse if row["exchange"] == "auto")["times_dense"]
    return [
        report.Verdict(
            f"gradient descent: communication of a pass, dense over {best['exchange']} (auto: {chosen:.1f}x)",
            f">= {_TIMES:g}x",
            f"{best['times_dense']:.1f}x",
            best["times_dense"] >= _TIMES,
        ),
        report.Verdict("relative difference of losses after each pass", f"<= {_LOSS:g}", f"{gap:.1e}", gap <= _LOSS),
        report.Verdict(
            f"accuracy on held-out files, points, SGDClassifier {theirs:.2f}",
            f"within {_POINT:g}",
            f"{ours:.2f}",
            abs(ours - theirs) <= _POINT,
        ),
        report.Verdict(
            "coordinate descent: communication, dense over sparse all-gather",
            f">= {_GATHER_TIMES:g}x",
            f"{times:.1f}x",
            times >= _GATHER_TIMES,
        ),
        report.Verdict("coordinate descent: weights with both", "same bits", "same" if same else "other", same),
    ]


def render(figures: dict[str, Any]) -> str:
    """The report as Markdown."""
    machine, about = timing.machine(), figures["runs"][0]
    lines = [
        f"# Linear models, {machine['date']}",
        "",
        f"`make bench-linear` on {machine['processor']}; commit {machine['commit']}; {NODES} ranks, a node each, "
        f"{figures['rate']} (one connection reaches {figures['reached'] / 1e6:,.0f} Mbit/s); {machine['stolen']} of "
        f"the cores' time stolen by the host. {about['samples']:,} samples, "
        f"{about['nonzeros'] / about['samples']:,.0f} nonzeros each.",
        "",
        "| method | exchange | seconds a pass | exchange (each launch) | entries of a rank | of all | dense/this |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows_of(figures["runs"]):
        each = ", ".join(f"{seconds:.3f}" for seconds in row["each"])
        lines.append(
            f"| {row['method']}, {row['steps']} steps a pass | {row['exchange']} | {row['seconds']:.3f} | "
            f"{row['communication']:.3f} ({each}) | {row['entries']:,.0f} | {row['entries_of_all']:,.0f} | "
            f"{row['times_dense']:.1f}x |"
        )
    return "\n".join([*lines, "", *report.table(verdicts(figures)), ""])


def draw(figures: dict[str, Any], path: str) -> None:
    """Plots seconds per pass, for the exchange and the rest, by method and exchange."""
    rows = rows_of(figures["runs"])
    figure = Figure(figsize=(11, 4), layout="constrained")
    for method, axis in zip(DIMENSIONS, figure.subplots(1, 2), strict=True):
        mine = [row for row in rows if row["method"] == method]
        names = [row["exchange"] for row in mine]
        exchanged = [row["communication"] for row in mine]
        axis.barh(names, exchanged, label="exchange")
        axis.barh(names, [row["seconds"] - row["communication"] for row in mine], left=exchanged, label="all else")
        axis.set(title=f"{method}, {DIMENSIONS[method] / 1e6:.1f}M dimensions", xlabel="seconds a pass")
        axis.invert_yaxis()
        axis.legend()
    writing.save_picture(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="1gbit", help="of the links (default: 1gbit)")
    parser.add_argument(
        "--characters",
        type=int,
        help=f"use only this many of each file's first characters (default: {WHOLE.characters:,})",
    )
    parser.add_argument("--quick", action="store_true", help="two minutes: few files and passes; writes no results")
    parser.add_argument("--dry", action="store_true", help="write no results")
    options = parser.parse_args()
    reason = unavailable()
    if reason is not None:
        sys.exit(reason)
    try:
        bits_per_second(options.rate)
    except ValueError as error:
        parser.error(str(error))
    plan = QUICK if options.quick else WHOLE
    figures = measure(plan._replace(characters=options.characters or plan.characters), options.rate)
    text = render(figures)
    print(text)
    if options.dry or options.quick:
        return
    stem = writing.write_results("linear", {"machine": timing.machine(), **figures}, text)
    draw(figures, f"{stem}.png")
    print(f"Written to {stem}.json, .md and .png")


if __name__ == "__main__":
    main()
