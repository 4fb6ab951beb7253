"""ResNet-50 or VGG-19 on ImageNet in 28 epochs of growing images, as CommLib trains it (5.6, Table 4).

    horovodrun -np 128 -H ... python -m examples.imagenet --data /nfs/imagenet --cache-dir /scratch/cache \\
        --precision mixed_float16 --checkpoint-dir /nfs/run7 --target top5=0.93

Images are 96, 128, 224 and 288 pixels wide for 13, 11, 3 and 1 epochs; gradients are aggregated by HiTopKComm in the
first 13 and by 2DTAR after that. Started again with the same --checkpoint-dir, training resumes where it stopped, even
in mid-epoch. Without --data it trains on what the machine has: crops of the photographs that scikit-image and
scikit-learn ship, labelled by photograph, left halves for training, right halves held out. In minutes on one machine:

    horovodrun -np 4 python -m examples.imagenet --reduced
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

import datacache
import hvd_sparse as hvd
from datacache.training import Training
from examples import photographs
from examples.models import images
from examples.training import arguments, losses, monitor, rates
from examples.vision import augment, layouts, stages
from examples.vision.accuracy import Accuracy, AverageStatistics, Beside
from examples.vision.samples import Cached, Plain, Samples
from examples.vision.stages import Stage

MODELS = {"resnet50": functools.partial(images.resnet50, last_gamma="zeros"), "vgg19": images.vgg19}
REDUCED = {
    "stages": stages.REDUCED,
    "width": 1 / 8,
    "photographs": "1280x640",
    "learning_rate": 0.2,
    "trust_coefficient": 0.05,
}
IMAGENET_CLASSES = 1000
# For a global batch of 256 images, scaled in proportion for larger ones (Goyal et al. 2017); start a search here.
RATES = {"sgd": 0.1, "momentum": 0.1, "lars": 0.2, "lamb": 3e-4, "adam": 1e-4}
WARMUP = 5 / 28  # of the epochs
# The launch scripts in examples/launch/ set these on every host.
DATA = os.environ.get("DATA_DIR")
CACHE = Path(os.environ.get("DATACACHE_LOCAL_DIR", "~/.cache/hvd_sparse/images"))
MEMORY = os.environ.get("DATACACHE_MEMORY_DIR", "/dev/shm")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a training, the same on every rank.

    Attributes:
        lines: lines of the log, one per epoch.
        weights: SHA-256 of all weights.
    """

    lines: list[dict[str, Any]]
    weights: str


def parser() -> argparse.ArgumentParser:
    """The command-line parser."""
    made = arguments.parser(
        __doc__,
        sized=False,
        optimizer="lars",
        learning_rate=None,
        recipe=None,
        weight_decay=5e-5,
        label_smoothing=0.1,
        warmup_epochs=None,
        schedule="polynomial",
        target=("top5", 0.93),
    )
    network = made.add_argument_group("network and images")
    network.add_argument("--model", choices=MODELS, default="resnet50")
    network.add_argument("--width", type=float, default=1.0, help="multiplier of the paper's numbers of channels")
    network.add_argument("--stages", default=stages.FULL, help="EPOCHSxSIZExBATCH, ... (default: %(default)s)")
    network.add_argument("--smallest-crop", type=float, default=0.35, help="as a share of the image's area")
    network.add_argument("--reduced", action="store_true", help="few, small images and an eighth of the width")
    data = made.add_argument_group("data")
    data.add_argument(
        "--data",
        type=Path,
        default=DATA,
        help="a folder with train and val, as class folders or TFRecords (default: $DATA_DIR, if set)",
    )
    data.add_argument("--classes", type=int, help="default: the number of class folders; 1000 for TFRecords")
    data.add_argument("--first-label", type=int, default=1, help="of TFRecords (default: %(default)s, as in ImageNet)")
    data.add_argument("--photographs", default="10240x2560", help="training x held-out crops, used without --data")
    data.add_argument("--cache-dir", type=Path, default=CACHE, help="on a local disk (default: %(default)s)")
    data.add_argument("--memory-gb", type=float, help="for decoded samples, per node (default: enough for all)")
    data.add_argument("--peers", metavar="INTERFACE", help="exchange decoded samples between nodes over this interface")
    data.add_argument("--no-cache", action="store_true", help="read with plain tf.data in every epoch")
    saving = made.add_argument_group("saving")
    saving.add_argument(
        "--save-every", type=int, default=1000, help="steps between checkpoints; one is also saved after each epoch"
    )
    saving.add_argument(
        "--stop-after", type=int, metavar="EPOCH", help="stop after this epoch; the same command resumes later"
    )
    return made


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of a command line; invalid ones end the script with an error message."""
    made = parser()
    if made.parse_known_args(words)[0].reduced:
        made.set_defaults(**REDUCED)
    options = made.parse_args(words)
    try:
        _complete(options)
    except ValueError as error:
        made.error(str(error))
    return options


def _complete(options: argparse.Namespace) -> None:
    """Sets the options that follow from others; raises ValueError if options are invalid."""
    plan = stages.parse(options.stages)
    options.epochs = sum(stage.epochs for stage in plan)
    options.warmup_epochs = WARMUP * options.epochs if options.warmup_epochs is None else options.warmup_epochs
    options.recipe = options.recipe or stages.recipe(plan)
    arguments.check_recipe(options)
    counts = options.photographs.split("x")
    if len(counts) != 2 or not all(count.isdigit() and int(count) > 0 for count in counts):
        raise ValueError(f"Expected --photographs such as 1280x640 (training x held out), got {options.photographs!r}.")


def train(options: argparse.Namespace) -> Outcome:
    """Trains on all ranks with the options of `parse`; a collective."""
    arguments.begin(options)
    return _Training(options).run()


class _Training:
    """A training, from its first unfinished stage to its end."""

    def __init__(self, options: argparse.Namespace):
        self._options, self._plan = options, stages.parse(options.stages)
        self._folder = options.data or _write_photographs(options, self._plan)
        with self._open("train", self._plan[0], memory_bytes=0) as probe:
            self._count, self._classes = len(probe), probe.classes
            self._begun = self._saving(probe, self._plan[0]).epoch if options.checkpoint_dir else 0
        legs = [rates.Leg(each.epochs, self._steps(each), each.batch / self._plan[0].batch) for each in self._plan]
        if options.learning_rate is None:
            options.learning_rate = RATES[options.optimizer] * self._plan[0].batch * hvd.size() / 256
        self._rate = rates.make(options, legs)
        classes = options.classes or len(self._classes) or IMAGENET_CLASSES
        if classes < len(self._classes):
            raise ValueError(
                f"Expected --classes of at least {len(self._classes)}, the number of class folders, got {classes}."
            )
        size = images.Images(width=options.width, image=None, batch=self._plan[0].batch, classes=classes)
        self._model = MODELS[options.model](size)
        self._model.compile(
            arguments.optimizer(options, self._rate, sum(leg.epochs * leg.steps for leg in legs)),
            losses.SmoothedCrossentropy(options.label_smoothing),
            metrics=[keras.metrics.SparseCategoricalAccuracy(name="top1")],
        )
        self._accuracy = Accuracy(self._model)
        self._monitor = monitor.Monitor(self._accuracy, monitor.log_path(options), options.target)
        self._follow = rates.StepFollowsEpoch(self._rate)
        self._beside = Beside(self._model)

    def run(self) -> Outcome:
        """Trains all remaining stages and returns the result.

        Raises:
            ValueError: if none remains.
        """
        options = self._options
        last = min(options.stop_after or options.epochs, options.epochs)
        if self._begun >= last:
            raise ValueError(
                f"{options.checkpoint_dir} has a checkpoint after epoch {self._begun}, and training ends after epoch "
                f"{last}: nothing is left to do. To start anew, choose another --checkpoint-dir."
            )
        arguments.agree(self._model, self._begun)
        for first, end, stage in stages.spans(self._plan):
            if first < last and self._begun < end:
                self._run_stage(max(first, self._begun), min(end, last), stage)
        return self._outcome()

    def _run_stage(self, epoch: int, end: int, stage: Stage) -> None:
        """Trains one stage, with its own caches and size of images."""
        options, position, saving = self._options, 0, None
        with self._open("train", stage) as samples, self._open("val", stage, memory_bytes=None) as held_out:
            if held_out.classes != self._classes:
                raise ValueError(
                    f"Expected the same classes for training and held out, got different ones in {self._folder}."
                )
            self._accuracy.samples, self._accuracy.size, self._accuracy.batch = held_out, stage.size, stage.batch
            if options.checkpoint_dir:
                saving = self._saving(samples, stage, self._beside)
                epoch, position = saving.epoch, saving.position
            self._follow.done = position // (stage.batch * hvd.size())
            first_step = self._rate.steps_before(epoch) + self._follow.done
            batches = augment.training_batches(
                samples.stream(stage.batch, epoch, position),
                stage.size,
                options.seed * hvd.size() + hvd.rank(),
                first_step,
                options.smallest_crop,
            )
            self._model.fit(
                batches,
                initial_epoch=epoch,
                epochs=end,
                steps_per_epoch=self._steps(stage),
                callbacks=monitor.callbacks(options, self._monitor, [AverageStatistics(), self._follow], saving),
                shuffle=False,  # the samples are shuffled already
                verbose=0,
            )
            hvd.topology.world().gather_descriptions(None, "imagenet.read")  # barrier: peers may still read the cache

    def _outcome(self) -> Outcome:
        digest = hashlib.sha256(b"".join(weight.tobytes() for weight in self._model.get_weights())).hexdigest()
        everyones = hvd.topology.world().gather_descriptions(digest, "imagenet.weights")
        if len(set(everyones)) > 1:
            raise RuntimeError(f"The ranks' weights differ after training: {everyones}.")
        return Outcome(self._monitor.lines, digest)

    def _open(self, split: str, stage: Stage, **options: Any) -> Samples:
        given = self._options
        source = layouts.find(self._folder, split)
        in_records = isinstance(source, datacache.TFRecords)
        decode = layouts.Decode(stage.stored, in_records, given.first_label if in_records else 0)
        if given.no_cache:
            return Plain(source, decode, given.seed, datacache.World.from_environment())
        from_horovod = datacache.World.from_horovod
        world = from_horovod(given.peers) if given.peers else datacache.World.from_environment()
        memory = None if given.memory_gb is None else int(given.memory_gb * 1e9)
        options = {"memory_bytes": memory, "memory_dir": MEMORY, "seed": given.seed, "world": world, **options}
        return Cached(source, decode, given.cache_dir.expanduser() / "cache", **options)

    def _saving(self, samples: Samples, stage: Stage, beside: Beside | None = None) -> Training:
        directory, every = Path(self._options.checkpoint_dir), self._options.save_every
        return samples.saving(directory, stage.batch, every, broadcast=hvd.broadcast_object, beside=beside)

    def _steps(self, stage: Stage) -> int:
        steps = self._count // (stage.batch * hvd.size())
        if steps < 1:
            raise ValueError(
                f"Expected at least one batch for all {hvd.size()} ranks, got {self._count} images and batches of "
                f"{stage.batch}: choose smaller batches with --stages."
            )
        return steps


def _write_photographs(options: argparse.Namespace, plan: Sequence[Stage]) -> Path:
    train, held_out = map(int, options.photographs.split("x"))
    side = max(stage.stored for stage in plan)
    folder = options.cache_dir.expanduser() / f"photographs-{train}-{held_out}-{side}"
    photographs.write_halves(folder, train, held_out, side)
    hvd.topology.world().gather_descriptions(None, "imagenet.written")
    return folder


def main() -> None:
    """Trains and prints the result."""
    outcome = train(parse())
    if hvd.rank() == 0:
        last = outcome.lines[-1] if outcome.lines else {}
        figures = ", ".join(f"{name} {last[name]:.4f}" for name in ("top1", "top5") if name in last)
        print(f"ended after epoch {len(outcome.lines)}: {figures}; weights {outcome.weights[:16]}", flush=True)


if __name__ == "__main__":
    main()
