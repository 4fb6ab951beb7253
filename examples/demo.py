"""Four ranks as two nodes of two train on real images with five recipes: `make demo`.

Starts itself under horovodrun. Every recipe trains the same network with the same settings on three splits of
scikit-learn's handwritten digits, half of them held out; density is 0.01. Writes results/demo.json and
results/demo.png.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time

RANKS, LOCAL_SIZE = 4, 2
DENSITY = 0.01
SEEDS = (0, 1, 2)
EPOCHS, BATCH_SIZE, LEARNING_RATE = 12, 16, 0.1
RESULTS = pathlib.Path("results")
RECIPES = ("dense", "torus2d", "topk", "mstopk", "hitopk")


def launch() -> None:
    """Starts the ranks, shows what they print, and reports."""
    RESULTS.mkdir(exist_ok=True)
    runs = RESULTS / "demo.runs.json"
    runs.unlink(missing_ok=True)
    horovodrun = pathlib.Path(sys.executable).with_name("horovodrun")
    command = [
        str(horovodrun),
        "-np",
        str(RANKS),
        "--gloo",
        sys.executable,
        "-m",
        "examples.demo",
        "--rank-of",
        str(runs),
    ]
    settings = {
        "HVD_SPARSE_LOCAL_SIZE": str(LOCAL_SIZE),
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_NUM_INTEROP_THREADS": "2",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONUNBUFFERED": "1",
    }
    print(
        f"{RANKS} ranks as {RANKS // LOCAL_SIZE} nodes of {LOCAL_SIZE} train a convolutional network on handwritten "
        f"digits ({len(RECIPES)} recipes x {len(SEEDS)} seeds, {EPOCHS} epochs, density {DENSITY}); two to three "
        "minutes on two cores.",
        flush=True,
    )
    with subprocess.Popen(
        command, env={**os.environ, **settings}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as ranks:
        others = _show(ranks.stdout)
    if ranks.returncode or not runs.exists():
        sys.exit(f"{others}\nThe ranks ended with status {ranks.returncode}; what they printed stands above.")
    summary = summarise(json.loads(runs.read_text()))
    runs.unlink()
    _write(RESULTS / "demo.json", json.dumps(summary["recipes"], indent=1) + "\n")
    draw(summary, RESULTS / "demo.png")
    print(_table(summary["recipes"]))
    print(f"Written to {RESULTS}/demo.json and {RESULTS}/demo.png")


def _show(lines) -> str:
    """Passes on the progress of rank 0 and returns the end of everything else, for when it fails."""
    others = []
    for line in lines:
        progress = re.match(r"\[0\]<stdout>:> (.*)", line)
        if progress:
            print(progress[1], flush=True)
        else:
            others.append(line)
    return "".join(others[-60:])


def train(runs_path: pathlib.Path) -> None:
    """What one rank does."""
    import keras

    import hvd_sparse as hvd

    hvd.init()
    recipes = {
        "dense": hvd.recipes.dense(),
        "torus2d": hvd.recipes.torus2d(),
        "topk": hvd.recipes.topk(DENSITY),
        "mstopk": hvd.recipes.mstopk(DENSITY),
        "hitopk": hvd.recipes.hitopk(DENSITY),
    }
    runs = []
    for name in RECIPES:
        for seed in SEEDS:
            keras.utils.clear_session()
            runs.append({"recipe": name, "seed": seed, **_train_once(recipes[name], seed)})
            if hvd.rank() == 0:
                done = len(runs)
                print(
                    f"> [{done:2d}/{len(RECIPES) * len(SEEDS)}] {name:8s} seed {seed}: test accuracy "
                    f"{runs[-1]['curve'][-1]:.4f}, {runs[-1]['step_ms']:.1f} ms a step",
                    flush=True,
                )
    everyones = hvd.topology.world().gather_descriptions(runs, "demo.runs")
    if hvd.rank() == 0:
        _write(runs_path, json.dumps(everyones))


def _train_once(recipe, seed: int) -> dict:
    """Trains from the start; what this rank has seen of it."""
    import keras
    import numpy as np

    import hvd_sparse as hvd
    from examples import digits

    class Clock(keras.callbacks.Callback):
        """Milliseconds of each step."""

        def __init__(self):
            super().__init__()
            self.steps = []

        def on_train_batch_begin(self, batch, logs=None):
            self.begun = time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            self.steps.append(1e3 * (time.perf_counter() - self.begun))

    # Ranks start apart and are made equal by the broadcast, as in any Horovod script.
    keras.utils.set_random_seed(1000 * seed + hvd.rank())
    data = digits.load(seed)
    images, labels = digits.share(data, hvd.rank(), hvd.size())
    steps = EPOCHS * -(-len(labels) // BATCH_SIZE)
    rate = keras.optimizers.schedules.CosineDecay(
        LEARNING_RATE / 10, steps, warmup_target=LEARNING_RATE, warmup_steps=steps // 10
    )
    telemetry = hvd.Telemetry()
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(rate, momentum=0.9), aggregator=recipe, telemetry=telemetry
    )
    model = digits.make_model()
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    clock = Clock()
    history = model.fit(
        images,
        labels,
        batch_size=BATCH_SIZE,
        epochs=EPOCHS,
        verbose=0,
        validation_data=(data.test_images, data.test_labels),
        validation_batch_size=len(data.test_labels),
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), clock],
    )
    figures = optimizer.exchange.read_telemetry()
    weights = np.concatenate([np.ravel(weight) for weight in model.get_weights()])
    return {
        "curve": history.history["val_accuracy"],
        "step_ms": float(np.median(clock.steps)),
        "bytes_inside": figures["bytes_inside"],
        "bytes_across": figures["bytes_across"],
        "weights": hashlib.sha256(weights.tobytes()).hexdigest(),
    }


def summarise(everyones: list[list[dict]]) -> dict:
    """Figures by recipe out of the runs of all ranks; bytes are means over the ranks."""
    import numpy as np

    recipes, curves = {}, {}
    for name in RECIPES:
        chosen = [index for index, run in enumerate(everyones[0]) if run["recipe"] == name]
        of_all = [runs[index] for runs in everyones for index in chosen]
        finals = [everyones[0][index]["curve"][-1] for index in chosen]
        curves[name] = np.mean([everyones[0][index]["curve"] for index in chosen], axis=0).tolist()
        recipes[name] = {
            "accuracy": float(np.mean(finals)),
            "accuracies": finals,
            "step_ms": float(np.median([run["step_ms"] for run in of_all])),
            "bytes_inside": float(np.mean([run["bytes_inside"] for run in of_all])),
            "bytes_across": float(np.mean([run["bytes_across"] for run in of_all])),
            "replicas_identical": all(len({runs[index]["weights"] for runs in everyones}) == 1 for index in chosen),
        }
    return {"recipes": recipes, "curves": curves}


def _table(recipes: dict) -> str:
    lines = [
        "",
        "recipe    test accuracy (seeds)             ms a step   bytes a step and rank   replicas",
        "                                                         inside      across      identical",
    ]
    for name, row in recipes.items():
        seeds = " ".join(f"{accuracy:.3f}" for accuracy in row["accuracies"])
        lines.append(
            f"{name:8s}  {row['accuracy']:.4f} ({seeds})      {row['step_ms']:8.1f}   {row['bytes_inside']:9,.0f}   "
            f"{row['bytes_across']:9,.0f}      {'yes' if row['replicas_identical'] else 'NO'}"
        )
    return "\n".join([*lines, ""])


def draw(summary: dict, path: pathlib.Path) -> None:
    """The test accuracy by epoch, and the bytes that leave a rank."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    learning, sending = figure.subplots(1, 2)
    for name, curve in summary["curves"].items():
        # Dashed, because MSTopK often selects just what exact top-k does.
        learning.plot(range(1, len(curve) + 1), curve, "--" if name == "mstopk" else "-", label=name)
    learning.set(xlabel="epoch", ylabel="test accuracy, mean of the seeds", ylim=(0.8, 1.0))
    learning.grid(alpha=0.3)
    learning.legend()
    names = list(summary["recipes"])
    inside = [summary["recipes"][name]["bytes_inside"] / 1e3 for name in names]
    across = [summary["recipes"][name]["bytes_across"] / 1e3 for name in names]
    places = range(len(names))
    sending.bar([place - 0.2 for place in places], inside, 0.4, label="inside the node")
    sending.bar([place + 0.2 for place in places], across, 0.4, label="to other nodes")
    sending.set_xticks(places, names)
    sending.set(ylabel="KB a step and rank", yscale="log")
    sending.legend()
    figure.savefig(path, dpi=120)


def _write(path: pathlib.Path, text: str) -> None:
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank-of", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of is None:
        launch()
    else:
        train(options.rank_of)


if __name__ == "__main__":
    main()
