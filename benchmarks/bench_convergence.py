"""How well models train under the exchanges of CommLib (Table 2, Fig. 10) and SparCML (8.3): `make bench-convergence`.

Four ranks as 2 nodes of 2 train a small ResNet and a small VGG (examples/models/small.py) on crops of photographs
(convergence_data.py), and the Transformer and the LSTM cells of examples/translation.py on message catalogues, with

- 2DTAR-SGD: recipes.torus2d, all of the gradient;
- Dense-SGD: recipes.dense, the same sums in another order, so that its difference from 2DTAR-SGD is the study's noise;
- TopK-SGD: recipes.topk, exact selection on each rank's gradient;
- MSTopK-SGD: recipes.hitopk, MSTopK through HiTopKComm, selection on the sums over a node,
- recommended: recipes.recommended, the same of momentum, with a density that begins high,
- updates, ahead: recipes.updates around the same, gradients taken at each node's own weights,
- for the Transformer also DiLoCo and SparseLoCo, with 30 steps of each node between two exchanges,

these at density 0.01 (that of CommLib's Fig. 7 and 8; Table 2 states none), the Transformer also with MSTopK-SGD after
two epochs of 2DTAR-SGD; and as SparCML's Quantized TopK SGD

- 8 and 16 of 512, 4 bits: recipes.sparcml_buckets for the ResNet;
- 4 of 512: the same without quantization for the LSTM cells, from the first step and after two epochs of 2DTAR-SGD,

for five seeds. The same seed gives all arms the same first weights and the same samples with the same noise in the
same order; all settings are the same for all arms (convergence_settings.py). So differences are paired by seed, and
the interval is Student's, 95%, for that many pairs.

Ranks are started once. Each finished run is a file in --folder, and a run whose file is there, made with the same
settings, is not made again: what was interrupted goes on.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import itertools
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks import report, timing, writing
from benchmarks.convergence_settings import ARMS, MEASURES, MODELS, TRAINED, pairs
from benchmarks.report import Section, Verdict

RANKS, LOCAL = 4, 2
DENSITY = 0.01
SEEDS = (0, 1, 2, 3, 4)
RESULTS = pathlib.Path("results") / "convergence"
# Two-sided 95% quantiles of Student's distribution, by degrees of freedom.
STUDENT = (math.inf, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
_QUIET = {
    "HVD_SPARSE_LOCAL_SIZE": str(LOCAL),
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "PYTHONUNBUFFERED": "1",
    "CUDA_VISIBLE_DEVICES": "",
}

Runs = dict[tuple[str, str, int], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Difference:
    """Of two arms, over paired seeds.

    Attributes:
        mean: in points.
        half: of the 95% interval, in points; infinite for a single pair.
        pairs: how many.
    """

    mean: float
    half: float
    pairs: int

    @property
    def low(self) -> float:
        """The interval's lower end."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """The interval's upper end."""
        return self.mean + self.half

    def __str__(self) -> str:
        return f"{self.mean:+.2f} ({self.low:+.2f} to {self.high:+.2f})"


def difference(one: Sequence[float], other: Sequence[float]) -> Difference:
    """The mean of one - other with Student's interval; ValueError where they do not pair."""
    if len(one) != len(other) or not 1 <= len(one) <= len(STUDENT):
        raise ValueError(f"Expected 1 to {len(STUDENT)} pairs, got {len(one)} and {len(other)} values.")
    gaps = np.subtract(one, other)
    count = len(gaps)
    half = STUDENT[count - 1] * float(np.std(gaps, ddof=1)) / math.sqrt(count) if count > 1 else math.inf
    return Difference(float(np.mean(gaps)), half, count)


# ---- runs ----


def fingerprint(model: str, density: float) -> str:
    """Changes with whatever makes a run of a model another one: its settings, its sources and the density."""
    folder = pathlib.Path(__file__).parents[1]
    names = ["benchmarks/convergence_tasks.py"]
    if MEASURES[model] == "BLEU":
        names += ["examples/translation.py", "examples/models/transformer.py", "examples/models/lstm.py"]
        names += [str(path.relative_to(folder)) for path in sorted((folder / "examples" / "text").glob("*.py"))]
    else:
        names += ["benchmarks/convergence_data.py", "examples/models/small.py", "examples/photographs.py"]
    digest = hashlib.sha256(json.dumps([dataclasses.asdict(MODELS[model]), density], sort_keys=True).encode())
    for name in names:
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()[:16]


def load(folder: pathlib.Path, made_with: dict[str, str]) -> Runs:
    """The finished runs of a folder that were made with their model's fingerprint."""
    found = {}
    for path in sorted(folder.glob("*-*-*.json")):
        run = json.loads(path.read_text())
        if run["fingerprint"] == made_with.get(run["model"]):
            found[run["model"], run["recipe"], run["seed"]] = run
    return found


def train(wanted: Sequence[dict[str, Any]], job: dict[str, Any], ranks: int = RANKS) -> None:
    """Starts the ranks once for all runs, and shows their progress; RuntimeError where they fail."""
    folder = pathlib.Path(job["folder"])
    path = folder / "job.json"
    path.write_text(json.dumps({**job, "runs": list(wanted)}))
    horovodrun = str(pathlib.Path(sys.executable).with_name("horovodrun"))
    command = [horovodrun, "-np", str(ranks), "--gloo", sys.executable, "-m", "benchmarks.convergence_rank", str(path)]
    with subprocess.Popen(
        command, env={**os.environ, **_QUIET}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as launcher:
        previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        try:
            others = _show(launcher.stdout)
        except BaseException:
            _end(launcher)
            raise
        finally:
            signal.signal(signal.SIGTERM, previous)
    if launcher.returncode:
        raise RuntimeError(f"{others}\nThe ranks ended with status {launcher.returncode}; what they said stands above.")


def _end(launcher: subprocess.Popen) -> None:
    """Has horovodrun end its ranks, and ends it where it does not."""
    launcher.terminate()
    try:
        launcher.wait(3)
    except subprocess.TimeoutExpired:
        launcher.kill()


def _show(lines: Any) -> str:
    """Passes on rank 0's finished runs and epochs, and returns the end of everything else, for when it fails."""
    others = []
    for line in lines:
        progress = re.match(r"\[0\]<stdout>:(> |(?=epoch \d))(.*)", line)
        if progress:
            print(f"{'  ' if progress[1] else '    '}{progress[2]}", flush=True)
        else:
            others.append(line)
    return "".join(others[-60:])


# ---- what came out ----


def arms_of(runs: Runs, model: str) -> list[str]:
    """The model's arms that were trained, in order."""
    return [arm for arm in TRAINED[model] if any(run[:2] == (model, arm) for run in runs)]


def finals(runs: Runs, model: str, recipe: str, what: str = "final") -> list[float]:
    """By seed; of the seeds that all arms have finished, so that they pair."""
    seeds, arms = sorted({seed for _, _, seed in runs}), arms_of(runs, model)
    whole = [seed for seed in seeds if all((model, arm, seed) in runs for arm in arms)]
    return [runs[model, recipe, seed][what] for seed in whole]


def summarise(runs: Runs, model: str) -> Section:
    """A model's results, differences and verdicts."""
    measure, arms = MEASURES[model], arms_of(runs, model)
    count = len(finals(runs, model, arms[0]))
    gaps = {pair: difference(finals(runs, model, pair.one), finals(runs, model, pair.other)) for pair in pairs(arms)}
    verdicts = [
        Verdict(
            f"{model}: {pair}, points of {measure}, 95%, {count} seeds",
            f"within {pair.wanted:g}",
            str(gap),
            -pair.wanted <= gap.low and gap.high <= pair.wanted,
        )
        for pair, gap in gaps.items()
        if pair.wanted is not None
    ]
    if measure == "top-1" and "torus2d" in arms:
        dense = float(np.mean(finals(runs, model, "torus2d")))
        verdicts.append(Verdict(f"{model}: dense top-1, points", "60 to 90", f"{dense:.2f}", 60 <= dense <= 90))
    lines = [f"| paired difference, points of {measure} | mean (95% interval, {count} seeds) |", "|---|---|"]
    lines += [f"| {pair} | {gap} |" for pair, gap in gaps.items()]
    figures = {
        "final": {arm: finals(runs, model, arm) for arm in arms},
        "top5": {arm: finals(runs, model, arm, "top5") for arm in arms},
        "curve": {arm: finals(runs, model, arm, "curve") for arm in arms},
        "differences": {
            f"{pair.one} - {pair.other}": {**dataclasses.asdict(gap), "low": gap.low, "high": gap.high}
            for pair, gap in gaps.items()
        },
    }
    return Section(model, lines, figures, verdicts)


def table(sections: Sequence[Section]) -> list[str]:
    """In the shape of CommLib's Table 2: models and arms, here with the spread over seeds."""
    shown = [arm for arm in ARMS if any(arm in section.figures["final"] for section in sections)]
    lines = [f"| model | {' | '.join(ARMS[arm].name for arm in shown)} |", "|---" * (1 + len(shown)) + "|"]
    for section in sections:
        for what, name in (("final", MEASURES[section.title]), ("top5", "top-5")):
            values = section.figures[what]
            spreads = {arm: f"{np.mean(each):.2f} ± {np.std(each, ddof=1):.2f}" for arm, each in values.items()}
            cells = [spreads.get(arm, "") for arm in shown]
            lines.append(f"| {section.title}, {name} | {' | '.join(cells)} |")
    return lines


def render(sections: Sequence[Section], about: dict[str, Any]) -> str:
    """The report as Markdown."""
    machine = timing.machine()
    verdicts = [verdict for section in sections for verdict in section.verdicts]
    seeds = ", ".join(map(str, about["seeds"]))
    lines = [
        f"# Convergence, {machine['date']}",
        "",
        f"`{about['command']}` on {machine['processor']}; commit {machine['commit']}; {RANKS} ranks as "
        f"{RANKS // LOCAL} nodes of {LOCAL}, density {about['density']}, seeds {seeds}; {about['minutes']:.0f} minutes "
        "of training. What is trained and how stands at the heads of benchmarks/bench_convergence.py and "
        "convergence_*.py.",
        "",
        "Means over the seeds, and the deviation from seed to seed:",
        "",
        *table(sections),
        *(["", "## Targets", "", *report.table(verdicts)] if verdicts else []),
    ]
    for section in sections:
        settings = ", ".join(f"{name} {value}" for name, value in about["settings"][section.title].items())
        lines += ["", f"## {section.title}", "", *section.lines, "", f"Settings, the same for all arms: {settings}."]
    return "\n".join([*lines, ""])


def draw(sections: Sequence[Section], path: str) -> None:
    """In the shape of CommLib's Fig. 10: accuracy against epoch, the mean of the seeds and from least to most."""
    figure = Figure(figsize=(5.5 * len(sections), 4.2), layout="constrained")
    for section, axis in zip(sections, figure.subplots(1, len(sections), squeeze=False)[0], strict=True):
        for arm, values in section.figures["curve"].items():
            curves = np.array(values)
            epochs = np.arange(1, curves.shape[1] + 1)
            (line,) = axis.plot(epochs, curves.mean(axis=0), label=ARMS[arm].name)
            axis.fill_between(epochs, curves.min(axis=0), curves.max(axis=0), color=line.get_color(), alpha=0.2)
        axis.set(title=section.title, xlabel="epoch", ylabel=f"{MEASURES[section.title]}, held-out, points")
        axis.grid(alpha=0.3)
        axis.legend()
    writing.save_picture(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help=f"some of {','.join(MODELS)} (all)")
    parser.add_argument("--recipes", default=",".join(ARMS), help=f"some of {','.join(ARMS)} (all of a model's)")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many (5)")
    parser.add_argument("--density", type=float, default=DENSITY, help="of the sparse arms (0.01)")
    parser.add_argument("--folder", type=pathlib.Path, default=RESULTS, help=f"of finished runs ({RESULTS})")
    parser.add_argument("--fresh", action="store_true", help="make all runs again")
    parser.add_argument("--dry", action="store_true", help="write no results")
    options = parser.parse_args()
    models, seeds = options.models.split(","), list(range(options.seeds))
    if not set(models) <= set(MODELS):
        parser.error(f"expected some of the models {', '.join(MODELS)}, got {options.models}")
    recipes = options.recipes.split(",")
    asked = {model: [arm for arm in TRAINED[model] if arm in recipes] for model in models}
    if not set(recipes) <= set(ARMS) or not all(asked.values()):
        parser.error(f"expected some of the recipes {', '.join(ARMS)} that each model has, got {options.recipes}")
    if not 2 <= options.seeds <= len(STUDENT):
        parser.error(f"expected 2 to {len(STUDENT)} seeds, got {options.seeds}")
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.fresh:
        for path in options.folder.glob("*-*-*.json"):
            path.unlink()
    runs, settings = study(options.folder, asked, seeds, options.density)
    sections = [summarise(runs, model) for model in models]
    about = {
        "command": command(sys.argv[1:]),
        "density": options.density,
        "seeds": seeds,
        "settings": settings,
        "minutes": sum(run["seconds"] for run in runs.values()) / 60,
    }
    text = render(sections, about)
    print(text)
    if options.dry:
        return
    data = {"machine": timing.machine(), "about": about}
    for section in sections:
        verdicts = [verdict._asdict() for verdict in section.verdicts]
        data[section.title] = {"verdicts": verdicts, "figures": section.figures}
    stem = writing.write_results("convergence", data, text)
    draw(sections, f"{stem}.png")
    print(f"Written to {stem}.json, .md and .png")


def command(words: Sequence[str]) -> str:
    """What makes the same results anywhere: the folder of finished runs is this machine's."""
    asked = [
        word
        for before, word in itertools.pairwise(["", *words])
        if before != "--folder" and not word.startswith("--folder")
    ]
    return f"bench_convergence {' '.join(asked)}" if asked else "make bench-convergence"


def study(
    folder: pathlib.Path, arms: Mapping[str, Sequence[str]], seeds: Sequence[int], density: float
) -> tuple[Runs, dict[str, dict[str, Any]]]:
    """Makes the runs of the models' arms that the folder does not have; all of them, and the settings of each model."""
    settings = {model: dataclasses.asdict(MODELS[model]) for model in arms}
    made_with = {model: fingerprint(model, density) for model in arms}
    asked = [(model, arm, seed) for model in arms for arm in arms[model] for seed in seeds]
    runs = load(folder, made_with)
    missing = [dict(zip(("model", "recipe", "seed"), run, strict=True)) for run in asked if run not in runs]
    print(f"{len(asked)} runs, {len(missing)} of them to be made", flush=True)
    if missing:
        job = {"local": LOCAL, "folder": str(folder), "density": density, "settings": {}, "fingerprints": made_with}
        began = time.perf_counter()
        train(missing, job)
        print(f"{len(missing)} runs took {(time.perf_counter() - began) / 60:.1f} minutes", flush=True)
        runs = load(folder, made_with)
    return {run: runs[run] for run in asked}, settings


if __name__ == "__main__":
    main()
