"""The mean of gradients over a network that may lose messages: the baseline that model averaging is compared with."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from hvd_sparse.averaging.flat import FlatVariables, flat, require_floats
from hvd_sparse.averaging.optimizer import require_new
from hvd_sparse.averaging.participant import require_finite, share_first
from hvd_sparse.averaging.transports import Transport
from hvd_sparse.transport import topology
from hvd_sparse.transport.communicator import Communicator
from hvd_sparse.transport.eager import making_variables

_AVERAGED = "_hvd_sparse_averaged_gradients"
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
    vars(optimizer)[_AVERAGED] = _Gradients(transport, rotate)
    optimizer.__class__ = _averaged_class(type(optimizer))
    return optimizer


def averages_gradients(optimizer: Any) -> bool:
    """Whether an optimizer was made by `GradientAveraging`."""
    return isinstance(optimizer, keras.optimizers.Optimizer) and _AVERAGED in vars(optimizer)


def averaged_gradients(optimizer: Any) -> _Gradients:
    """The object that averages the gradients of an optimizer; ValueError if there is none."""
    if not averages_gradients(optimizer):
        raise ValueError(
            f"Expected an optimizer that averages gradients, got {type(optimizer).__name__}: wrap it with "
            "hvd.averaging.GradientAveraging(optimizer, transport)."
        )
    return vars(optimizer)[_AVERAGED]


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


def _averaged_class(base: Any) -> type:
    """A subclass that averages gradients before it applies them, under the same name."""

    class Averaged(base):
        __class__ = property(lambda self: base)

        def build(self, variables):
            if not self.built:
                with making_variables():
                    base.build(self, variables)
                    name = f"gradient_averaging.{next(_numbers)}"
                    averaged_gradients(self).begin(list(variables), topology.world(), name)

        def apply(self, grads, trainable_variables=None):
            gradients = averaged_gradients(self)
            if not self.built:
                self.build(trainable_variables)
            given = gradients.variables if trainable_variables is None else list(trainable_variables)
            means = gradients.mean(grads, given)
            with tf.control_dependencies(means):  # of weight decay and the count of steps, too
                base.apply(self, means, gradients.variables)

    Averaged.__name__, Averaged.__qualname__ = base.__name__, base.__qualname__
    Averaged.__module__, Averaged.__doc__ = base.__module__, base.__doc__
    return Averaged


def _dense(gradient: Any, variable: Any) -> tf.Tensor:
    return tf.zeros(variable.shape, tf.float32) if gradient is None else tf.convert_to_tensor(gradient)
