"""The mean of gradients over a network that may lose messages: the baseline that model averaging is compared with."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from hvd_sparse.averaging.flat import FlatVariables, flat, require_floats
from hvd_sparse.averaging.optimizer import require_new
from hvd_sparse.averaging.participant import require_finite, share_first
from hvd_sparse.averaging.transports import Transport
from hvd_sparse.optimizers import attached
from hvd_sparse.optimizers.attached import Attached, Own
from hvd_sparse.transport import topology
from hvd_sparse.transport.communicator import Communicator
from hvd_sparse.transport.eager import making_variables

_numbers = itertools.count()


def GradientAveraging(  # noqa: N802 - as hvd.DistributedOptimizer
    optimizer: keras.optimizers.Optimizer, transport: Transport, rotate: bool = True
) -> keras.optimizers.Optimizer:
    """Makes a Keras optimizer average gradients over all ranks, by messages some of which may be lost.

    This is the baseline of section 6.1 of Yu et al. 2019, not meant for use: where a block is lost, a rank applies its
    own gradient, and nothing ever brings the models together again. All ranks begin with rank 0's variables. Without
    losses it is synchronous training. It does not support loss scaling or `gradient_accumulation_steps`.

    Args:
        optimizer: any Keras optimizer that is not built yet; changed in place and returned.
        transport: what carries the gradients, laid end to end as a vector of float32.
        rotate: whether the owner of a block changes in each step.

    Raises:
        TypeError: if it is not a Keras optimizer.
        ValueError: if it is already wrapped or built, or its steps are not one gradient each; in the first step, on
            every rank, if ranks have built different models.
        tf.errors.InvalidArgumentError: in a step, if a rank's gradient holds a NaN or an infinity.

    Steps and bytes sent per rank: those of the transport.
    """
    inner = require_new(optimizer)
    if inner is not optimizer or inner.gradient_accumulation_steps or inner.built:
        raise ValueError(
            "GradientAveraging expects an optimizer that is not yet built, without loss scaling and without "
            "gradient_accumulation_steps."
        )
    attached.attach(optimizer, _GradientsAveraged(_Gradients(transport, rotate)))
    return optimizer


def averaged_gradients(optimizer: Any) -> _Gradients:
    """The object that averages the gradients of an optimizer; ValueError if there is none."""
    way = "hvd.averaging.GradientAveraging(optimizer, transport)"
    return attached.required(optimizer, _GradientsAveraged, "averages gradients", way).gradients


class _Gradients:
    """Averages the gradients of one model."""

    def __init__(self, transport: Transport, rotate: bool):
        self._transport = transport
        self._rotate = rotate

    def begin(self, variables: Sequence[Any], world: Communicator, name: str) -> None:
        """As `Participant.begin`."""
        require_floats(variables)
        self.variables = list(variables)
        self._flat = FlatVariables(variables)
        account = {"variables": self._flat.account(), "transport": self._transport.account(), "rotate": self._rotate}
        world.agree(account, "what they average", f"{name}.agree")
        share_first(world, variables, name)
        self._channel = self._transport.open(self._flat.size, world, self._rotate, name)
        self._world = world
        with tf.device("CPU:0"):
            self._round = tf.Variable(0, dtype=tf.int64, trainable=False, name="averaging_round")

    @tf.autograph.experimental.do_not_convert
    def mean(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[tf.Tensor]:
        """The mean gradient of each of `self.variables`, in its dtype; a missing gradient counts as zero."""
        given = {id(variable): gradient for gradient, variable in zip(gradients, variables, strict=True)}
        own = flat([_dense(given.get(id(variable)), variable) for variable in self.variables])
        with tf.control_dependencies(require_finite(own, self._channel, self._world.world_rank, "gradients")):
            own = tf.identity(own)
        averaged = self._channel.average(own, self._round.read_value())
        self._round.assign(averaged.round + 1)
        return self._flat.cut(averaged.vector)


class _GradientsAveraged(Attached):
    """Gradients are averaged before the optimizer applies them."""

    def __init__(self, gradients: _Gradients):
        self.gradients = gradients

    def build(self, own: Own, variables: Sequence[Any]) -> None:
        with making_variables():
            own.build(variables)
            self.gradients.begin(list(variables), topology.world(), f"gradient_averaging.{next(_numbers)}")

    def scaled(self, apply: Callable[[], None]) -> None:
        raise ValueError(
            "hvd.averaging.GradientAveraging does not support loss scaling: compile with "
            "auto_scale_loss=False, or use hvd.averaging.ModelAveraging."
        )

    def apply(self, own: Own, gradients: Sequence[Any], variables: Sequence[Any] | None) -> None:
        if not own.optimizer.built:
            own.optimizer.build(variables)
        given = self.gradients.variables if variables is None else list(variables)
        means = self.gradients.mean(gradients, given)
        with tf.control_dependencies(means):  # of weight decay and the count of steps, too
            own.apply(means, self.gradients.variables)


def _dense(gradient: Any, variable: Any) -> tf.Tensor:
    return tf.zeros(variable.shape, tf.float32) if gradient is None else tf.convert_to_tensor(gradient)
