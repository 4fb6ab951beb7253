"""Trains a Transformer whose feed-forward layers pass on only the largest activations (DCT-MP).

    python -m examples.split_translation --reduced --sparsity 0.9 --splits 2

Splits are placed as in Gupta et al. 2021 (3.2), or after the layers that are named. All other options are those of
examples/translation.py. An `hvd.pipeline.Threshold` layer stands at each split, and everything runs in one process.
This shows how much quality is lost by what stages on several ranks would send. It does not yet run the stages on
several ranks: the residual connection around a feed-forward layer would have to cross the network as well, and
hvd.pipeline only takes models whose parts pass on a single tensor.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import keras

import hvd_sparse as hvd
from examples import translation
from examples.models import splits
from examples.text import decoding
from examples.training import arguments, monitor, rates


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line, or `words`: the options of `translation.parse`, and those of the splits."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    made.add_argument("--sparsity", type=float, default=0.9, help="share of each activation dropped; 0 for no splits")
    made.add_argument("--splits", type=int, default=1, help="how many, placed as in the paper (%(default)s)")
    made.add_argument("--split-after", nargs="+", metavar="LAYER", help="as encoder_1 and decoder_1, in their place")
    made.add_argument("--before-relu", action="store_true", help="after the dense layer itself, not after its ReLU")
    made.add_argument("--every", type=int, default=1, help="epochs from one evaluation to the next (%(default)s)")
    own, others = made.parse_known_args(words)
    options = argparse.Namespace(**vars(translation.parse(others)), **vars(own))
    if options.model != "transformer":
        made.error(f"expected the Transformer, which has feed-forward layers, got --model {options.model}")
    return options


def train(options: argparse.Namespace, task: translation.Task | None = None, **exchange: Any) -> translation.Outcome:
    """Trains one model from the start, or from the newest checkpoint; a collective, with the arguments of
    `translation.train`."""
    arguments.begin(options)
    task = translation.prepare(options) if task is None else task
    own = translation.training_batches(options, task, hvd.rank(), hvd.size())
    model, schedule = make_model(options, task), translation.make_schedule(options, own)
    optimizer = arguments.optimizer(options, schedule, options.epochs * own.steps, **exchange)
    model.compile(optimizer, translation.smoothed_crossentropy(options))
    arguments.agree(model)
    validation, test = translation.evaluations(options, task, model)
    watch = monitor.Monitor(
        lambda _: validation(), monitor.log_path(options), options.target, options.every, options.epochs
    )
    stream = translation.Stream(own)
    shown = [*monitor.callbacks(options, watch), stream, rates.StepFollowsEpoch(schedule)]
    model.fit(stream.dataset(), epochs=options.epochs, callbacks=shown, shuffle=False, verbose=0)
    return translation.Outcome(watch.lines, test(), watch.reached, translation.digest(model))


def make_model(options: argparse.Namespace, task: translation.Task) -> keras.Model:
    """The model that the options name; its initial weights do not depend on where it is split."""
    model = translation.make_model(options, task.vocabulary)
    if not options.sparsity:
        return model
    places = options.split_after or splits.usual_places(options.layers, options.splits)
    return splits.thresholded(model, places, lambda: hvd.pipeline.Threshold(options.sparsity), options.before_relu)


def main() -> None:
    """Trains, and prints the scores on the test set."""
    options = parse()
    outcome = train(options)
    if hvd.rank() == 0:
        figures = ", ".join(f"{name} {value:.4g}" for name, value in outcome.test.items())
        print(f"test, {options.beams} beams: {figures} ({decoding.signature()})")


if __name__ == "__main__":
    main()
