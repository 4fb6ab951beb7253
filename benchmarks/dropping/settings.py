"""What the study of gradient dropping trains, at what pace, and in which arms (Aji and Heafield 2017, section 5)."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from benchmarks.convergence.settings import MODELS as CONVERGENCE
from benchmarks.convergence.settings import TranslationSettings
from benchmarks.dropping.simulation import Pace
from hvd_sparse.compression.error_feedback import ErrorFeedback
from hvd_sparse.compression.quantizers import OneBit, Quantizer, TwoBits
from hvd_sparse.compression.selectors import Quantized
from hvd_sparse.compression.thresholds import SampledThreshold
from hvd_sparse.compression.updates import LocalUpdates
from hvd_sparse.servers.rules import InOrderOfArrival, Rule, Together
from hvd_sparse.servers.settings import Settings

CLIENTS = 4
_EVEN = (1.0,) * CLIENTS
_UNEVEN = (2.0, *_EVEN[1:])


@dataclasses.dataclass(frozen=True)
class Timing:
    """How long a batch and its messages take, in simulated time.

    Attributes:
        computing: median seconds per batch.
        communication: share of a step that messages take if everything is sent.
        spread: see `Pace`.
        latency: seconds per message.
    """

    computing: float
    communication: float
    spread: float = 0.2
    latency: float = 1e-4

    def for_batches_of(self, factor: float) -> Timing:
        """The timing of batches that are larger by this factor: they take longer to compute, but not to send."""
        computing = 1.0 - self.communication
        communication = self.communication / (self.communication + factor * computing)
        return dataclasses.replace(self, computing=factor * self.computing, communication=communication)

    def pace(self, size: int, slowness: tuple[float, ...], seed: int) -> Pace:
        """The pace for a vector of this many elements."""
        messages = self.computing * self.communication / (1.0 - self.communication)  # a push, then a pull
        bandwidth = 2 * 4 * size / len(slowness) / messages
        return Pace(self.computing, self.spread, slowness, bandwidth, self.latency, seed)


@dataclasses.dataclass(frozen=True)
class ImageSettings:
    """How the perceptron is trained (5: the paper's has three layers of "4069", batches of 40 and AdaGrad at 0.005).

    Attributes:
        width: neurons of each of three layers.
        epochs: over the training crops.
        train: number of training crops.
        held_out: number of crops that are not trained on.
        watched: number of them used for validation; the others are the test set.
        batch: crops per client and step.
        rate: learning rate of AdaGrad, whose accumulators begin at 0.
        noise: noise of each crop, see `convergence_settings.ImageSettings`.
        looks: number of evaluations on validation crops per training.
        averaged: number of last evaluations whose parameters are averaged for the result; 4 in the paper.
        timing: 4 of the paper's GPUs take 2,489 images a second without dropping, and 41% of it is communication (5.3).
    """

    width: int = 192
    epochs: int = 4
    train: int = 24576
    held_out: int = 16384
    watched: int = 2048
    batch: int = 40
    rate: float = 0.01
    noise: float = 0.2
    looks: int = 16
    averaged: int = 4
    timing: Timing = Timing(0.038, 0.41)


@dataclasses.dataclass(frozen=True)
class SentenceSettings:
    """How the LSTM of the convergence study is trained, by Adam as there.

    Attributes:
        options: see `convergence_settings.TranslationSettings`.
        epochs: over the training pairs.
        rate: in units of the learning rate of these options.
        looks: number of evaluations on validation pairs per training.
        averaged: see `ImageSettings`.
        timing: 13% of the paper's translation is communication (5.3); a computation is taken as a tenth of a second.
    """

    options: tuple[str, ...]
    epochs: int = 10
    rate: float = 1.0
    looks: int = 20
    averaged: int = 4
    timing: Timing = Timing(0.1, 0.13)


_LSTM = CONVERGENCE["lstm"]
assert isinstance(_LSTM, TranslationSettings)
_LARGER = 2.5  # ratio of the paper's batch sizes, 80 and 32 sentences (Table 2); the study's own is 512 pieces
_LARGER_OPTIONS = (*_LSTM.options, "--batch-size", "1280")
_SMALLER = SentenceSettings(_LSTM.options, _LSTM.epochs)
MODELS: dict[str, ImageSettings | SentenceSettings] = {
    "mlp": ImageSettings(),
    "lstm": _SMALLER,
    "lstm1280": SentenceSettings(_LARGER_OPTIONS, _LSTM.epochs, timing=_SMALLER.timing.for_batches_of(_LARGER)),
}
MEASURES = {"mlp": "top-1", "lstm": "BLEU", "lstm1280": "BLEU"}


@dataclasses.dataclass(frozen=True)
class Arm:
    """One way to train.

    Attributes:
        name: in tables.
        density: density of pushes and of pulls; 1 sends all.
        scope: scope of the threshold of pushes; that of pulls is global, as in the paper (5.2).
        quantizer: quantizer of pushes.
        rule: update rule of the servers.
        updates: whether clients run the optimizer, and push its updates of the weights instead of gradients.
        ahead: whether clients compute gradients at their copy minus the updates that they have not pushed.
        decay: factor by which a client's residual fades at each push.
        normalised: whether the perceptron has layer normalisation.
        slowness: see `Pace`.
        timing: seed of the computation times, and of nothing else.
    """

    name: str
    density: float = 0.01
    scope: str = "global"
    quantizer: Quantizer | None = None
    rule: Rule = InOrderOfArrival()
    updates: bool = False
    ahead: bool = False
    decay: float = 1.0
    normalised: bool = True
    slowness: tuple[float, ...] = _EVEN
    timing: int = 0

    def settings(self) -> Settings:
        """The settings of clients and servers."""
        if self.density == 1.0:
            return Settings(None, None, self.rule, None)
        chosen: Any = SampledThreshold(self.density, scope=self.scope)
        pushed = chosen if self.quantizer is None else Quantized(chosen, self.quantizer)
        kept: Any = ErrorFeedback(pushed, self.decay)
        push = LocalUpdates(kept, ahead=self.ahead) if self.updates else kept
        return Settings(push, SampledThreshold(self.density), self.rule, None)


ARMS = {
    "dense": Arm("nothing dropped", 1.0),
    "again": Arm("nothing dropped, other arrivals", 1.0, timing=1),
    "drop90": Arm("90%", 0.1),
    "drop99": Arm("99%"),
    "drop999": Arm("99.9%", 0.001),
    "together": Arm("nothing dropped, synchronous", 1.0, rule=Together()),
    "together99": Arm("99%, synchronous", rule=Together()),
    "local": Arm("99%, a threshold for each variable", scope="variable"),
    "plain_dense": Arm("nothing dropped, not normalised", 1.0, normalised=False),
    "plain_global": Arm("99%, not normalised", normalised=False),
    "plain_local": Arm("99%, a threshold for each variable, not normalised", scope="variable", normalised=False),
    "threshold": Arm("99%, 1 bit, the threshold", quantizer=OneBit("threshold")),
    "column": Arm("99%, 1 bit, means of columns", quantizer=OneBit("column")),
    "mean": Arm("99%, 1 bit, one mean", quantizer=OneBit("global")),
    "two_bits": Arm("99%, 2 bits", quantizer=TwoBits()),
    "stale0": Arm("99%, max_staleness 0", rule=InOrderOfArrival(0)),
    "stale4": Arm("99%, max_staleness P", rule=InOrderOfArrival(CLIENTS)),
    "stale16": Arm("99%, max_staleness 4 P", rule=InOrderOfArrival(4 * CLIENTS)),
    "gathered": Arm("99%, P pushes an update", rule=InOrderOfArrival(None, CLIENTS)),
    "slow": Arm("99%, a client at half speed", slowness=_UNEVEN),
    "slow4": Arm("99%, a client at half speed, max_staleness P", rule=InOrderOfArrival(CLIENTS), slowness=_UNEVEN),
    "updates": Arm("99%, updates", updates=True),
    "updates_ahead": Arm("99%, updates, ahead", updates=True, ahead=True),
    "updates_fading": Arm("99%, updates, ahead, residuals x 0.99", updates=True, ahead=True, decay=0.99),
    "updates_gathered": Arm("99%, updates, P pushes an update", updates=True, rule=InOrderOfArrival(None, CLIENTS)),
}
FOLLOWS = {"again": "dense"}  # the noise of equal arms is that of equal learning rates
MORE = ("dense", "again", "drop99")  # trained with more seeds than others
_BETTER = ("gathered", "updates", "updates_ahead", "updates_fading", "updates_gathered")
TRAINED = {
    "mlp": tuple(ARMS),
    "lstm": ("dense", "again", "drop99", *_BETTER),
    "lstm1280": ("dense", "drop99", "updates_ahead"),
}


class Question(NamedTuple):
    """A question that some arms answer.

    Attributes:
        title: title of the section and the picture.
        base: the arm that the others are compared with.
        arms: the others.
        across: horizontal axes of its pictures, from "samples" and "time".
        curve: vertical axis: "score" or "loss".
        bases: references of arms that are compared with another arm than `base`.
    """

    title: str
    base: str
    arms: tuple[str, ...]
    across: tuple[str, ...] = ("samples",)
    curve: str = "score"
    bases: tuple[tuple[str, str], ...] = ()

    def base_of(self, arm: str) -> str:
        """The arm that an arm is compared with."""
        return dict(self.bases).get(arm, self.base)


QUESTIONS = (
    Question("drop rate", "dense", ("again", "drop90", "drop99", "drop999"), across=("samples", "time")),
    Question(
        "thresholds and layer normalisation",
        "drop99",
        ("local", "plain_dense", "plain_global", "plain_local"),
        bases=(("plain_dense", "dense"), ("plain_global", "plain_dense"), ("plain_local", "plain_dense")),
    ),
    Question("quantization", "drop99", ("threshold", "column", "mean", "two_bits"), curve="loss"),
    Question(
        "staleness",
        "drop99",
        ("stale0", "stale4", "stale16", "gathered", "together99", "together"),
        bases=(("together99", "together"), ("together", "dense")),
    ),
    Question("a slow client", "drop99", ("slow", "slow4"), across=("time",)),
    Question("updates as pushes", "dense", ("updates", "updates_ahead", "updates_fading", "updates_gathered")),
)


class Wanted(NamedTuple):
    """Two arms that should end with similar scores.

    Attributes:
        one: the first arm.
        other: the second arm.
        points: maximum difference.
    """

    one: str
    other: str
    points: float


WANTED = {
    "mlp": (Wanted("drop99", "dense", 0.5), Wanted("again", "dense", 0.5)),
    "lstm": (Wanted("updates_fading", "dense", 2.0),),
    "lstm1280": (),
}
# Longer trainings, by their number of epochs; reported if the store has runs of them.
LONGER: dict[str, dict[int, tuple[Wanted, ...]]] = {
    "mlp": {},
    "lstm": {30: (Wanted("updates_fading", "dense", 1.0),)},
    "lstm1280": {},
}
