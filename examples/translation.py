"""Trains a Transformer (Vaswani et al. 2017) or an LSTM to translate English into German, on any number of ranks.

    horovodrun -np 4 python -m examples.translation --recipe hitopk --density 0.01 --checkpoint-dir /shared/run1

Without files it trains on data that any Debian machine has: the messages of installed programs and their translations,
in /usr/share/locale/de/LC_MESSAGES. To use your own corpus, such as WMT's, pass text files in which line n of the
target is the translation of line n of the source:

    python -m examples.translation --base --train-source train.en --train-target train.de \
        --valid-source newstest2013.en --valid-target newstest2013.de

--base is the paper's model and vocabulary; --reduced is a model that trains in about a minute on two cores; --model
lstm uses an LSTM with attention instead of the Transformer. Words are split into pieces by byte-pair encoding,
sentences are bucketed by length, and --batch-size counts the pieces of one side (source or target), padding included.
After each epoch it reports the loss and the top-1 and top-5 accuracy on the pieces of held-out sentences (with teacher
forcing), and the BLEU score of greedy translations. At the end it reports the same for a test set, with beam search.
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import hashlib
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from examples.models import lstm, transformer
from examples.text import batches, corpus, decoding
from examples.text.batches import Encoded, TrainingBatches
from examples.text.corpus import Corpus, Pair
from examples.text.vocabulary import PAD, Vocabulary
from examples.training import arguments, losses, monitor, rates
from hvd_sparse.keras.callbacks.base import DistributedCallback

_COMMON = {
    "optimizer": "adam",
    "schedule": "inverse-sqrt",
    "label_smoothing": 0.1,
    "dropout": 0.1,
    "beams": 4,
    "further": 50,
}
PRESETS: dict[str, dict[str, Any]] = {
    "catalogues": {
        **_COMMON,
        "width": 0.5,
        "layers": 3,
        "vocabulary": 8_000,
        "longest": 64,
        "batch_size": 2_048,
        "epochs": 30,
        "warmup_epochs": 4.0,
        "learning_rate": 1e-3,
    },
    "base": {
        **_COMMON,
        "width": 1.0,
        "layers": 6,
        "vocabulary": 37_000,
        "longest": 128,
        "batch_size": 3_125,  # 25,000 over eight ranks (5.1)
        "epochs": 20,
        "warmup_epochs": 0.8,  # about 4,000 steps of WMT's 4.5M pairs (5.3)
        "learning_rate": 7e-4,  # 512 ** -0.5 * 4,000 ** -0.5
    },
    "reduced": {
        **_COMMON,
        "width": 0.125,
        "layers": 1,
        "dropout": 0.0,  # dropout would make so short a training take longer
        "vocabulary": 1_500,
        "longest": 24,
        "least_words": 3,
        "most_words": 8,
        "batch_size": 512,
        "epochs": 6,
        "warmup_epochs": 1.0,
        "learning_rate": 5e-3,
        "beams": 1,
        "further": 10,
    },
}
MODELS = {"transformer": transformer.transformer, "lstm": lstm.lstm}
_WITHOUT = "catalogues"
_VOCABULARY = "vocabulary.model"
_EVALUATED = 8_192  # pieces per batch of an evaluation, which keeps nothing for a backward pass


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line, or `words`, with the defaults of the preset that is named there."""
    made = arguments.parser(__doc__, sized=False)
    made.add_argument("--epochs", type=int)
    made.add_argument("--batch-size", type=int, help="pieces of one side, padding included, a rank and step")
    presets = made.add_mutually_exclusive_group()
    presets.add_argument("--base", dest="preset", action="store_const", const="base", help="the paper's base model")
    presets.add_argument("--reduced", dest="preset", action="store_const", const="reduced", help="for two cores")
    data = made.add_argument_group("data; message catalogues where no files are given")
    for part in ("train", "valid", "test"):
        for side in ("source", "target"):
            data.add_argument(f"--{part}-{side}", type=pathlib.Path, metavar="FILE")
    data.add_argument("--catalogues", type=pathlib.Path, metavar="DIR", help="in place of the machine's")
    data.add_argument("--least-words", type=int, default=1, help="shorter messages of catalogues are left out")
    data.add_argument("--most-words", type=int, help="longer messages of catalogues are left out")
    data.add_argument("--vocabulary", type=int, help="pieces of words, for both languages together")
    data.add_argument("--longest", type=int, help="pieces; longer sentences are not trained on")
    model = made.add_argument_group("model and decoding")
    model.add_argument("--model", choices=MODELS, default="transformer")
    model.add_argument("--width", type=float, help="times the features (512) and heads of Transformer base")
    model.add_argument("--layers", type=int, help="of the encoder, and of the decoder")
    model.add_argument("--dropout", type=float)
    model.add_argument("--beams", type=int, help="of the test; validation is greedy")
    model.add_argument("--further", type=int, help="pieces that a translation may have more than its source")
    preset = made.parse_known_args(words)[0].preset or _WITHOUT
    made.set_defaults(**PRESETS[preset])
    options = arguments.parse(made, words)
    if options.warmup_epochs == PRESETS[preset]["warmup_epochs"]:  # a shorter training has a shorter warm-up
        options.warmup_epochs = min(options.warmup_epochs, options.epochs / 2)
    return options


@dataclasses.dataclass(frozen=True)
class Task:
    """What is learnt, the same on every rank.

    Attributes:
        corpus: pairs of texts.
        vocabulary: vocabulary of both languages.
        train: encoded training pairs.
        validation: encoded validation pairs.
        test: encoded test pairs.
    """

    corpus: Corpus
    vocabulary: Vocabulary
    train: Encoded
    validation: Encoded
    test: Encoded


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a training, the same on every rank.

    Attributes:
        lines: lines of the log, one per epoch, with "epoch", "seconds", "loss", "top1", "top5" and "bleu" on validation
            data.
        test: "loss", "top1", "top5" and "bleu" on test data, after the last epoch.
        reached: seconds until --target was reached, without evaluation; None if there was no target or it was not
            reached.
        weights: SHA-256 of the model's weights.
    """

    lines: list[dict[str, Any]]
    test: dict[str, float]
    reached: float | None
    weights: str


def prepare(options: argparse.Namespace) -> Task:
    """Reads the corpus and learns the vocabulary; a collective. Trainings with equal data options can share the result.

    Raises:
        ValueError: on every rank, if ranks have different pairs or the given files do not match.
        RuntimeError: if the machine has too few pairs.
    """
    if not hvd.topology.is_initialized():
        hvd.init()
    world = hvd.topology.world()
    pairs = _corpus(options)
    world.agree({"pairs": corpus.digest(pairs)}, "the pairs of sentences", "translation.pairs")
    model = None
    if world.rank == 0:
        print(f"{pairs.origin}: {' + '.join(f'{len(part):,}' for part in pairs[:3])} for training, validation and test")
        model = base64.b64encode(_vocabulary(options, pairs.train).model).decode()
    vocabulary = Vocabulary(base64.b64decode(world.gather_descriptions(model, "translation.vocabulary")[0]))
    return Task(pairs, vocabulary, *(Encoded.of(part, vocabulary) for part in pairs[:3]))


def _corpus(options: argparse.Namespace) -> Corpus:
    files = [(options.train_source, options.train_target), (options.valid_source, options.valid_target)]
    tests = (options.test_source, options.test_target)
    given = [path is not None for pair in files for path in pair]
    if not any(given) and not any(tests):
        return corpus.of_catalogues(options.catalogues, options.least_words, options.most_words)
    if not all(given) or (tests[0] is None) != (tests[1] is None):
        raise ValueError(
            "Expected --train-source, --train-target, --valid-source and --valid-target together, and --test-source "
            "with --test-target; or none of them, to train on the machine's message catalogues."
        )
    return corpus.of_files(*files, tests if tests[0] is not None else None)


def _vocabulary(options: argparse.Namespace, pairs: Sequence[Pair]) -> Vocabulary:
    """The vocabulary of the run that is resumed, else a new one, which is kept beside the checkpoints."""
    if not options.checkpoint_dir:
        return Vocabulary.learn((side for pair in pairs for side in pair), options.vocabulary)
    path = pathlib.Path(options.checkpoint_dir, _VOCABULARY)
    if not path.exists():
        learnt = Vocabulary.learn((side for pair in pairs for side in pair), options.vocabulary)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(learnt.model)
        part.replace(path)
    kept = Vocabulary(path.read_bytes())
    if kept.size != options.vocabulary:
        raise ValueError(f"Expected a vocabulary of {options.vocabulary} pieces, {path} has {kept.size}: move it away.")
    return kept


class Stream(DistributedCallback):
    """Gives `fit` the batches of the current epoch, also if a resumed run does not begin with the first one."""

    def __init__(self, own: TrainingBatches):
        super().__init__()
        self._batches, self._epoch = own, 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        self._epoch = epoch

    def dataset(self) -> tf.data.Dataset:
        """((sources, targets), labels, weights) of one epoch; weights are 0 at padding."""
        tokens, weights = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None, None], tf.float32)
        made = tf.data.Dataset.from_generator(self._given, output_signature=((tokens, tokens), tokens, weights))
        return made.apply(tf.data.experimental.assert_cardinality(self._batches.steps)).prefetch(2)

    def _given(self) -> Iterator[Any]:
        for batch in self._batches.epoch(self._epoch):
            yield (batch.source, batch.target), batch.labels, (batch.labels != PAD).astype(np.float32)


class Evaluation:
    """Loss, top-1, top-5 and BLEU on pairs; each pair is evaluated on one rank, and all ranks get the same figures.

    Args:
        model: model, evaluated with its weights at the time of each call.
        encoded: encoded pairs.
        pairs: the same pairs as texts.
        vocabulary: vocabulary of both languages.
        decoder: decoder that translates.
        beams: number of the decoder's beams.
    """

    def __init__(
        self,
        model: keras.Model,
        encoded: Encoded,
        pairs: Sequence[Pair],
        vocabulary: Vocabulary,
        decoder: decoding.Decoder,
        beams: int,
    ):
        self._model, self._encoded, self._vocabulary = model, encoded, vocabulary
        self._references = [pair.target for pair in pairs]
        self._decoder, self._beams = decoder, beams
        tokens = tf.TensorSpec([None, None], tf.int32)
        self._sums = tf.function(self._summed, input_signature=[tokens] * 3, autograph=False)

    def __call__(self) -> dict[str, float]:
        """Evaluates the model; a collective."""
        world = hvd.topology.world()
        sums = tf.zeros(4, tf.float64)
        told: list[tuple[int, str]] = []
        for _, batch in batches.share(self._encoded, _EVALUATED, world.rank, world.size):
            sums += self._sums(*batch)
        for rows, batch in batches.share(self._encoded, _EVALUATED // self._beams, world.rank, world.size):
            told += zip(rows, self._vocabulary.decode(self._decoder(batch.source)), strict=True)
        count, loss, top1, top5 = world.allreduce(sums, "sum", "translation.sums").numpy().tolist()
        everyones = world.gather_descriptions(told, "translation.told")
        texts = [text for _, text in sorted(row for rank in everyones for row in rank)]
        scores = {"loss": loss / count, "top1": top1 / count, "top5": top5 / count}
        return {**scores, "bleu": decoding.bleu(texts, self._references)}

    def _summed(self, source: tf.Tensor, target: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Sums over all pieces but padding: their number, cross entropy, and hits in the top 1 and in the top 5."""
        logits = tf.cast(self._model([source, target], training=False), tf.float32)
        shown = labels != PAD
        logits, labels = tf.boolean_mask(logits, shown), tf.boolean_mask(labels, shown)
        sums = [tf.size(labels), tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)]
        sums += [tf.math.in_top_k(labels, logits, k) for k in (1, 5)]
        return tf.stack([tf.reduce_sum(tf.cast(each, tf.float64)) for each in sums])


def train(options: argparse.Namespace, task: Task | None = None, **exchange: Any) -> Outcome:
    """Trains one model from the start, or from the newest checkpoint; a collective.

    Args:
        options: as returned by `parse`.
        task: as returned by `prepare` for the same data options; prepared here if None. With the same seed all recipes
            start from the same weights and see the same batches.
        exchange: further arguments of `hvd.DistributedOptimizer`.
    """
    arguments.begin(options)
    task = prepare(options) if task is None else task
    own = training_batches(options, task, hvd.rank(), hvd.size())
    if own.left_out and hvd.rank() == 0:
        print(f"{own.left_out:,} pairs of more than {options.longest - 1} pieces are not trained on")
    model = make_model(options, task.vocabulary)
    schedule = make_schedule(options, own)
    model.compile(
        arguments.optimizer(options, schedule, options.epochs * own.steps, **exchange), smoothed_crossentropy(options)
    )
    arguments.agree(model)
    validation, test = evaluations(options, task, model)
    watch = monitor.Monitor(lambda _: validation(), monitor.log_path(options), options.target, epochs=options.epochs)
    stream = Stream(own)
    following = [stream, rates.StepFollowsEpoch(schedule)]
    shown = [*monitor.callbacks(options, watch), *following]
    model.fit(stream.dataset(), epochs=options.epochs, callbacks=shown, shuffle=False, verbose=0)
    return Outcome(watch.lines, test(), watch.reached, digest(model))


def training_batches(options: argparse.Namespace, task: Task, rank: int, ranks: int) -> TrainingBatches:
    """A rank's training batches."""
    longest = batches.boundaries(options.longest)
    return TrainingBatches(task.train, longest, options.batch_size, rank, ranks, options.seed)


def make_schedule(options: argparse.Namespace, own: TrainingBatches) -> rates.WarmUpThenDecay:
    """The schedule of the learning rate."""
    return rates.make(options, [rates.Leg(options.epochs, own.steps)])


def smoothed_crossentropy(options: argparse.Namespace) -> keras.losses.Loss:
    """The loss, a mean over all pieces but padding."""
    return losses.SmoothedCrossentropy(options.label_smoothing, reduction="mean_with_sample_weight")


def evaluations(options: argparse.Namespace, task: Task, model: keras.Model) -> tuple[Evaluation, Evaluation]:
    """The evaluations on validation data, with greedy decoding, and on test data, with beam search."""
    greedy = decoding.Decoder(model, further=options.further)
    beam = greedy if options.beams == 1 else decoding.Decoder(model, options.beams, further=options.further)
    return (
        Evaluation(model, task.validation, task.corpus.validation, task.vocabulary, greedy, 1),
        Evaluation(model, task.test, task.corpus.test, task.vocabulary, beam, options.beams),
    )


def digest(model: keras.Model) -> str:
    """SHA-256 of the weights."""
    return hashlib.sha256(b"".join(np.ascontiguousarray(each).tobytes() for each in model.get_weights())).hexdigest()


def make_model(options: argparse.Namespace, vocabulary: Vocabulary) -> keras.Model:
    """The model that the options name; dropout differs between ranks."""
    size = transformer.Sentences(
        options.width, None, options.batch_size, vocabulary.size, options.layers, options.dropout
    )
    return MODELS[options.model](size, seed=100 * (1_000 * options.seed + hvd.topology.world().rank))


def main() -> None:
    """Trains, and prints the scores on the test set."""
    options = parse()
    outcome = train(options)
    if hvd.rank() == 0:
        figures = ", ".join(f"{name} {value:.4g}" for name, value in outcome.test.items())
        print(f"test, {options.beams} beams: {figures} ({decoding.signature()})")


if __name__ == "__main__":
    main()
