"""LAMB: Adam with each layer's update scaled by its trust ratio."""

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
class LAMB(LayerwiseOptimizer):
    """Layer-wise adaptive moments for large batches (You et al. 2020, Algorithm 2), a Keras optimizer.

    For each variable w with gradient g, in step t (from 1):

        m = beta_1 m + (1 - beta_1) g;  v = beta_2 v + (1 - beta_2) g^2
        r = (m / (1 - beta_1^t)) / (sqrt(v / (1 - beta_2^t)) + epsilon)
        u = r + weight_decay w
        w -= learning_rate |w| / |u| u

    |w| / |u| is 1 where either is 0. Gradients, norms, sparse gradients and `choice` are as with `LARS`.

    Args:
        learning_rate: a float, a schedule, or a callable.
        beta_1: in [0, 1).
        beta_2: in [0, 1).
        epsilon: at least 0.
        weight_decay: at least 0; part of u, as above; Keras's decoupled decay is not applied.
        exclude: as for `LARS`: no weight decay, and the ratio 1, which is Adam.
        parallel: as for `LARS`.
        **kerass: what `keras.optimizers.Optimizer` takes: clipnorm, use_ema, gradient_accumulation_steps, name, ...

    Raises:
        ValueError, TypeError: if an argument is invalid.

    Steps and bytes sent per rank, if the norms are shared: as for `LARS`.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float = 0.01,
        exclude: Sequence[str] = BIAS_AND_NORMALISATION,
        parallel: bool | Communicator = True,
        **kerass: Any,
    ):
        super().__init__(
            learning_rate=learning_rate, weight_decay=weight_decay, exclude=exclude, parallel=parallel, **kerass
        )
        self.beta_1 = _below_one(beta_1, "beta_1")
        self.beta_2 = _below_one(beta_2, "beta_2")
        self.epsilon = at_least_zero(epsilon, "epsilon")

    def get_config(self) -> dict[str, Any]:
        """All arguments."""
        return {**super().get_config(), "beta_1": self.beta_1, "beta_2": self.beta_2, "epsilon": self.epsilon}

    def _make_slots(self, variables: Sequence[Any]) -> None:
        """The moments."""
        self.first_moments, self.second_moments = self.add_optimizer_variables(
            variables, ["first_moment", "second_moment"]
        )

    def _partials(self, group: Group, gradients: Sequence[tf.Tensor], first: int, last: int) -> tf.Tensor:
        return ops.lamb_partials(
            group.weights, *self._moments(group), gradients, group.decays, *self._constants(), first, last
        )

    def _ratios(self, norms: tf.Tensor, decays: Any, adapted: Any) -> tf.Tensor:
        return trust_ratio.lamb(norms, adapted)

    def _begin_piece(self, piece: Piece, decay: float) -> Begun:
        # In the order of the native pass (ops/lars/rules.inc).
        gradient = piece.gradient
        first = self.beta_1 * piece.slots["first_moments"] + (1 - self.beta_1) * gradient
        second = self.beta_2 * piece.slots["second_moments"] + (1 - self.beta_2) * (gradient * gradient)
        divisor = tf.sqrt(second * self._correction(self.beta_2)) + self.epsilon
        direction = first * self._correction(self.beta_1) / divisor + decay * piece.weight
        return direction, {"first_moments": first, "second_moments": second}

    def _end_piece(self, piece: Piece, begun: Begun, scale: tf.Tensor, decay: float) -> tuple[tf.Tensor, Slots]:
        direction, moments = begun
        return scale * direction, moments

    def _correction(self, beta: float) -> tf.Tensor:
        """The correction for a moment's start at zero, [] float32."""
        step = tf.cast(self._constants()[-1], tf.float64)
        return tf.cast(1 / (1 - tf.constant(beta, tf.float64) ** step), tf.float32)

    def _update(self, group: Group, gradients: Sequence[tf.Tensor], ratios: tf.Tensor, learning_rate: Any) -> None:
        ops.lamb_update(
            group.weights, *self._moments(group), gradients, ratios, group.decays, learning_rate, *self._constants()
        )

    def _moments(self, group: Group) -> tuple[list[tf.Variable], list[tf.Variable]]:
        return slots(self.first_moments, group), slots(self.second_moments, group)

    def _constants(self) -> tuple[float, float, float, tf.Tensor]:
        """beta_1, beta_2, epsilon, and the number of this step, from 1."""
        return self.beta_1, self.beta_2, self.epsilon, tf.cast(self.iterations, tf.int64) + 1


def _below_one(number: Any, name: str) -> float:
    if not at_least_zero(number, name) < 1:
        raise ValueError(f"Expected {name} in [0, 1), got {number!r}.")
    return float(number)
