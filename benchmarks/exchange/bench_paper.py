"""CommLib's cluster on paper, and larger ones: `make bench-paper` calculates and times nothing.

The cluster has 16 nodes of 8 V100 on 25 Gbit/s Ethernet. The report gives the times of CommLib's Fig. 7 and 8 with the
orderings that section 5.3 states, the throughputs of Tables 3 and 4, and predictions for 1 to 1,024 such nodes. The
formulas are those of hvd_sparse/costs/recipes.py, the constants and assumptions those of
benchmarks/exchange/paper_model.py.
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from benchmarks.exchange import paper_model as model
from benchmarks.exchange.paper_model import Constants, Ordering, Setting, Workload
from benchmarks.reporting import timing, writing

FIGURE_7_SIZES = [256_000 * 2**power for power in range(9)] + [128_000_000]
FIGURE_8_SIZES = {"ResNet-50": 25_000_000, "Transformer": 110_000_000}
NAMES = {"topk": "NaiveAG", "tree": "TreeAR", "torus2d": "2DTAR", "hitopk": "HiTopKComm"}
NODES = [2**power for power in range(11)]
BEYOND_SIZE = model.MODEL_SIZES["resnet50"]
BEYOND_DENSITIES = (0.01, 0.001)
BEYOND = {**NAMES, "blocks": "blocks(3, 2)"}  # the last, ours, is `recommended` on three nodes or more
PAIRS = (
    ("hitopk", "torus2d"),
    ("hitopk", "tree"),
    ("torus2d", "tree"),
    ("topk", "tree"),
    ("topk", "hitopk"),
    ("hitopk", "blocks"),
    ("blocks", "torus2d"),
)
PREDICTED = "MSTopK-SGD"


class Cell(NamedTuple):
    """A throughput of the paper and the model's; samples are those of a step on all GPUs."""

    work: str
    column: str
    published: float
    computed: float
    samples: float
    fitted: bool

    @property
    def error(self) -> float:
        """The model's error, as a share of the paper's value."""
        return self.computed / self.published - 1


class Variant(NamedTuple):
    """The result under another assumption."""

    name: str
    constants: Constants
    errors: dict[str, float]


def cells(works: tuple[Workload, ...], fitted: tuple[str, ...], constants: Constants) -> list[Cell]:
    """All cells of a table."""
    found = []
    for work in works:
        samples = model.NODES * model.LOCAL * (work.batch or constants.batch)
        for column, published in work.published.items():
            computed = model.throughput(work, column, constants)
            found.append(Cell(work.name, column, published, computed, samples, column in fitted))
    return found


def variants() -> list[Variant]:
    """The predicted column under other assumptions, with the constants fitted anew."""
    whole = model.FITTED_COLUMNS
    others = (
        ("density 0.001", whole, Setting(density=0.001)),
        ("float32 values", whole, Setting(element=model.SINGLE)),
        ("LARS in Table 4's single-GPU rates already", whole, Setting(lars=False)),
        ("fitted on 2DTAR-SGD alone", ("2DTAR-SGD",), Setting()),
    )
    found = []
    for name, columns, setting in others:
        constants = model.whole_batch(model.fit(model.TABLE_3, columns, setting))
        errors = {
            work.name: model.throughput(work, PREDICTED, constants, setting) / work.published[PREDICTED] - 1
            for work in model.TABLE_3
        }
        found.append(Variant(name, constants, errors))
    return found


def calculate() -> dict[str, Any]:
    """All reported values, in the form of the JSON file."""
    free = model.fit(model.TABLE_3)
    constants = model.whole_batch(free)
    where = model.cluster(constants)
    single = Setting(element=model.SINGLE)
    return {
        "fitted": free._asdict(),
        "constants": constants._asdict(),
        "table 3": [_json(cell) for cell in cells(model.TABLE_3, model.FITTED_COLUMNS, constants)],
        "table 4": [_json(cell) for cell in cells(model.TABLE_4, (), constants)],
        "variants": [variant._asdict() | {"constants": variant.constants._asdict()} for variant in variants()],
        "figure 7": {
            recipe: {size: model.exchange_seconds(recipe, where, size) for size in FIGURE_7_SIZES} for recipe in NAMES
        },
        "figure 8": {name: model.steps("hitopk", where, size, single) for name, size in FIGURE_8_SIZES.items()},
        "orderings": [
            *_orderings("Fig. 7", model.figure_7_orderings(where, FIGURE_7_SIZES)),
            *_orderings("Fig. 8", model.figure_8_orderings(where, list(FIGURE_8_SIZES.values()))),
        ],
        "beyond": {
            density: {
                recipe: {nodes: _beyond(recipe, nodes, density, constants) for nodes in NODES} for recipe in BEYOND
            }
            for density in BEYOND_DENSITIES
        },
        "crossovers": {
            density: {
                f"{BEYOND[one]} slower than {BEYOND[other]}": model.overtaken(
                    one, other, constants, BEYOND_SIZE, Setting(density=density), NODES[-1]
                )
                for one, other in PAIRS
            }
            for density in BEYOND_DENSITIES
        },
    }


def _json(cell: Cell) -> dict[str, Any]:
    return cell._asdict() | {"error": cell.error}


def _orderings(figure: str, found: list[Ordering]) -> list[dict[str, Any]]:
    return [{"figure": figure, **ordering._asdict()} for ordering in found]


def _beyond(recipe: str, nodes: int, density: float, constants: Constants) -> float:
    return model.exchange_seconds(recipe, model.cluster(constants, nodes), BEYOND_SIZE, Setting(density=density))


def render(found: dict[str, Any]) -> str:
    """The tables as Markdown."""
    about = timing.machine()
    sections = [
        [
            f"# CommLib on paper, {about['date']}",
            "",
            f"`make bench-paper`, commit {about['commit']}: a calculation by the formulas of `hvd_sparse.costs` "
            f"for {model.NODES} nodes of {model.LOCAL} V100 behind 25 Gbit/s.",
        ],
        ["## Constants, fitted on Dense-SGD and 2DTAR-SGD of Table 3 (8 cells)", "", *_constants(found)],
        ["## Assumptions", "", *_assumptions()],
        ["## Table 3, samples a second", "", *_cells(found["table 3"])],
        [
            "## Table 4, predicted by the same constants",
            "",
            "Table 4 has 8% less than Table 3 for MSTopK-SGD at 96x96 and 2% less for 2DTAR-SGD at 224x224: so much "
            "may differ between two runs of the paper's own.",
            "",
            *_cells(found["table 4"]),
        ],
        [f"## {PREDICTED} of Table 3 under other assumptions, constants fitted anew", "", *_variants(found)],
        ["## Fig. 7: density 0.01, 16-bit values, ms", "", *_figure_7(found["figure 7"])],
        ["## Fig. 8: density 0.01, float32, ms", "", *_figure_8(found["figure 8"])],
        ["## The orderings that 5.3 states", "", *_stated(found["orderings"])],
        ["## Beyond: 25.6M elements, 16-bit values, nodes of 8, ms", "", *_nodes(found)],
    ]
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def _table(heads: list[str], rows: list[list[str]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def _constants(found: dict[str, Any]) -> list[str]:
    free = Constants(**found["fitted"])
    rows = [
        [
            "one rank of a node across nodes",
            f"{free.stream / 1e9:.3f} GB/s",
            "one TCP connection driven by one thread, both ways at once: 0.3 to 1.2 GB/s",
        ],
        [
            "all ranks of a node across nodes",
            f"{free.bandwidth / 1e9:.2f} GB/s",
            f"at most the {model.LINE_RATE / 1e9:.3f} GB/s of 25 Gbit/s: {free.bandwidth / model.LINE_RATE:.0%} of it",
        ],
        ["share of the backward pass that hides communication", f"{free.hidden:.2f}", "0 to 1"],
        [
            "the Transformer's batch a GPU",
            f"{free.batch:.1f}, used as {found['constants']['batch']}",
            "sentences of 256 words; the paper leaves it out",
        ],
    ]
    return _table(["constant", "value", "plausible"], rows)


def _assumptions() -> list[str]:
    return _table(["assumption", "value", "reason"], [list(entry) for entry in model.ASSUMPTIONS])


def _cells(entries: list[dict[str, Any]]) -> list[str]:
    rows = [
        [
            entry["work"],
            entry["column"],
            f"{entry['published']:,.0f}",
            f"{entry['computed']:,.0f}",
            f"{1e3 * entry['samples'] / entry['published']:.1f}",
            f"{1e3 * entry['samples'] / entry['computed']:.1f}",
            f"{entry['error']:+.1%}",
            "fitted" if entry["fitted"] else "predicted",
        ]
        for entry in entries
    ]
    return _table(["workload", "algorithm", "CommLib", "model", "ms a step, CommLib", "model", "error", ""], rows)


def _variants(found: dict[str, Any]) -> list[str]:
    names = [work.name for work in model.TABLE_3]
    as_reported = {entry["work"]: entry["error"] for entry in found["table 3"] if entry["column"] == PREDICTED}
    entries = [{"name": "as above", "constants": found["constants"], "errors": as_reported}, *found["variants"]]
    rows = [
        [entry["name"], *(f"{entry['errors'][name]:+.1%}" for name in names), _short(Constants(**entry["constants"]))]
        for entry in entries
    ]
    return _table(["assumed", *names, "stream, node (GB/s), hidden, batch"], rows)


def _short(constants: Constants) -> str:
    stream, bandwidth = constants.stream / 1e9, constants.bandwidth / 1e9
    return f"{stream:.2f}, {bandwidth:.2f}, {constants.hidden:.2f}, {constants.batch}"


def _figure_7(taken: dict[str, dict[int, float]]) -> list[str]:
    rows = [[f"{size:,}", *(f"{1e3 * taken[recipe][size]:.2f}" for recipe in NAMES)] for size in FIGURE_7_SIZES]
    note = "The sizes are those of Fig. 6, 256 thousand to 128 million; the axis of Fig. 7 is not in the text."
    return [note, "", *_table(["elements", *NAMES.values()], rows)]


def _figure_8(taken: dict[str, dict[str, float]]) -> list[str]:
    names = list(next(iter(taken.values())))
    rows = [
        [f"{work}, {FIGURE_8_SIZES[work] / 1e6:.0f}M", *(f"{1e3 * steps[name]:.2f}" for name in names)]
        for work, steps in taken.items()
    ]
    return _table(["", *names], rows)


def _stated(orderings: list[dict[str, Any]]) -> list[str]:
    rows = [
        [
            entry["figure"],
            entry["stated"],
            "at every size" if not entry["broken"] else f"not at {', '.join(f'{size:,}' for size in entry['broken'])}",
        ]
        for entry in orderings
    ]
    return _table(["figure", "stated", "in the model"], rows)


def _nodes(found: dict[str, Any]) -> list[str]:
    lines = []
    for density, taken in found["beyond"].items():
        rows = []
        for nodes in NODES:
            times = {recipe: taken[recipe][nodes] for recipe in BEYOND}
            fastest = BEYOND[min(times, key=times.__getitem__)]
            rows.append([f"{nodes:,}", *(f"{1e3 * seconds:.1f}" for seconds in times.values()), fastest])
        lines += [f"Density {density}:", "", *_table(["nodes", *BEYOND.values(), "fastest"], rows), ""]
        for pair, nodes in found["crossovers"][density].items():
            at = f"from {nodes} nodes" if nodes is not None else f"at no number of nodes up to {NODES[-1]:,}"
            lines.append(f"- {pair} {at}")
        lines.append("")
    return lines[:-1]


def draw(found: dict[str, Any], path: str) -> None:
    """Draws Table 3 against the model, Fig. 7, Fig. 8, and the predictions for more nodes."""
    figure = Figure(figsize=(17, 4.2), layout="constrained")
    against, sizes, bars, nodes = figure.subplots(1, 4)
    for number, column in enumerate(model.RECIPES):
        chosen = [entry for entry in found["table 3"] if entry["column"] == column]
        points = [(entry["published"], entry["computed"]) for entry in chosen]
        against.loglog(*zip(*points, strict=True), "ox^"[number], label=column)
    ends = np.array([500, 6e5])
    against.loglog(ends, ends, color="grey", linewidth=0.8)
    against.fill_between(ends, 0.85 * ends, 1.15 * ends, color="grey", alpha=0.2, label="15%")
    against.set(title="Table 3", xlabel="CommLib, samples a second", ylabel="model")
    for recipe, taken in found["figure 7"].items():
        sizes.loglog(list(taken), [1e3 * seconds for seconds in taken.values()], ".-", label=NAMES[recipe])
    sizes.set(title="Fig. 7: 16 nodes of 8, density 0.01", xlabel="elements", ylabel="ms")
    bottom = np.zeros(len(found["figure 8"]))
    for step in next(iter(found["figure 8"].values())):
        heights = np.array([1e3 * steps[step] for steps in found["figure 8"].values()])
        bars.bar(list(found["figure 8"]), heights, bottom=bottom, label=step)
        bottom += heights
    bars.set(title="Fig. 8: HiTopKComm, density 0.01", ylabel="ms")
    for number, recipe in enumerate(BEYOND):
        for density, style in zip(BEYOND_DENSITIES, ("-", "--"), strict=True):
            sparse = recipe in ("topk", "hitopk")
            if not sparse and density != BEYOND_DENSITIES[0]:
                continue
            taken = found["beyond"][density][recipe]
            label = f"{BEYOND[recipe]}, {density}" if sparse else BEYOND[recipe]
            times = [1e3 * seconds for seconds in taken.values()]
            nodes.loglog(list(taken), times, style, color=f"C{number}", label=label)
    nodes.set(title="25.6M elements", xlabel="nodes of 8", ylabel="ms")
    for axis in (against, sizes, bars, nodes):
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    writing.save_picture(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", action="store_true", help="write no results")
    options = parser.parse_args()
    found = calculate()
    text = render(found)
    print(text)
    if options.dry:
        return
    stem = writing.write_results("paper", {"date": timing.machine()["date"], **found}, text)
    draw(found, f"{stem}.png")
    print(f"Written to {stem}.json, .md and .png")


if __name__ == "__main__":
    main()
