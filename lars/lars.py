"""LARS: stochastic gradient descent with momentum, with each layer's learning rate scaled by its trust ratio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from lars import ops, trust_ratio
from lars.layerwise import BIAS_AND_NORMALISATION, Begun, Group, LayerwiseOptimizer, Slots, at_least_zero, slots
from lars.pieces import Piece

if TYPE_CHECKING:
    from hvd_sparse.transport.communicator import Communicator


@keras.saving.register_keras_serializable("lars")
class LARS(LayerwiseOptimizer, keras.optimizers.SGD):
    """Layer-wise adaptive rate scaling (CommLib Eq. 11; You et al. 2017, Algorithm 1), a Keras optimizer.

    For each variable w with gradient g:

        ratio = trust_coefficient |w| / (|g| + weight_decay |w| + epsilon)
        v = momentum v + learning_rate ratio (g + weight_decay w)
        w -= v, or with nesterov: w -= momentum v + learning_rate ratio (g + weight_decay w)

    The ratio is 1 where |w| or |g| is 0. Norms are those of whole variables, in float64. The gradients are those that
    Keras has accumulated and clipped; `tf.IndexedSlices` are made dense, as decay and momentum affect every row.

    Args:
        learning_rate: a float, a schedule, or a callable.
        momentum: in [0, 1].
        weight_decay: at least 0. It is added to the gradient, as above; Keras's decoupled decay is not applied.
        trust_coefficient: at least 0.
        epsilon: at least 0.
        nesterov: see above.
        exclude: regular expressions; a variable in whose path one is found has no weight decay and the ratio 1. The
            default excludes variables called bias, gamma, beta or scale, which are the biases of Keras's layers and the
            scales and offsets of its normalisation layers. [] excludes nothing.
        parallel: True lets the ranks of a job started by `hvd_sparse.init()` share the work of the norms, with the
            parallel tensor operator (CommLib 4.2), if that is faster: on the first step both ways are measured, and all
            ranks take the same one; `choice` says which and why. All ranks must then take every step together, with the
            same weights and gradients, as behind `hvd_sparse.DistributedOptimizer` or its tape (local variables need
            False). False never shares. A communicator, such as `hvd_sparse.topology.node()`, shares among its ranks
            without measuring. The result has the same bits either way.
        **kerass: what `keras.optimizers.Optimizer` takes: clipnorm, use_ema, gradient_accumulation_steps, name, ...

    Raises:
        ValueError, TypeError: if an argument is invalid.

    Steps and bytes sent per rank, if the norms are shared: P - 1 and 16 bytes for every block of 65,536 elements of the
    others' and its own.
    """

    momentums: list[Any]

    def __init__(
        self,
        learning_rate: Any = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        trust_coefficient: float = 0.001,
        epsilon: float = 1e-9,
        nesterov: bool = False,
        exclude: Sequence[str] = BIAS_AND_NORMALISATION,
        parallel: bool | Communicator = True,
        **kerass: Any,
    ):
        super().__init__(
            learning_rate=learning_rate,
            momentum=momentum,
            nesterov=nesterov,
            weight_decay=weight_decay,
            exclude=exclude,
            parallel=parallel,
            **kerass,
        )
        self.trust_coefficient = at_least_zero(trust_coefficient, "trust_coefficient")
        self.epsilon = at_least_zero(epsilon, "epsilon")

    def get_config(self) -> dict[str, Any]:
        """All arguments."""
        return {**super().get_config(), "trust_coefficient": self.trust_coefficient, "epsilon": self.epsilon}

    def _make_slots(self, variables: Sequence[Any]) -> None:
        """Creates the velocities, even if momentum is 0: they are part of the update."""
        if not self.momentums:
            self.momentums = self.add_optimizer_variables(variables, "momentum")

    def _partials(self, group: Group, gradients: Sequence[tf.Tensor], first: int, last: int) -> tf.Tensor:
        return ops.lars_partials(group.weights, gradients, first, last)

    def _ratios(self, norms: tf.Tensor, decays: Any, adapted: Any) -> tf.Tensor:
        return trust_ratio.lars(norms, decays, adapted, self.trust_coefficient, self.epsilon)

    def _begin_piece(self, piece: Piece, decay: float) -> Begun:
        return piece.gradient, {}

    def _end_piece(self, piece: Piece, begun: Begun, scale: tf.Tensor, decay: float) -> tuple[tf.Tensor, Slots]:
        step = scale * (piece.gradient + decay * piece.weight)
        velocity = self.momentum * piece.slots["momentums"] + step
        lowered = self.momentum * velocity + step if self.nesterov else velocity
        return lowered, {"momentums": velocity}

    def _update(self, group: Group, gradients: Sequence[tf.Tensor], ratios: tf.Tensor, learning_rate: Any) -> None:
        velocities = slots(self.momentums, group)
        ops.lars_update(
            group.weights, velocities, gradients, ratios, group.decays, learning_rate, self.momentum, self.nesterov
        )
