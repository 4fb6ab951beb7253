"""A rank of a small training whose gradients are integers that depend on the rank and the step.

So the sum of all that was applied and all that waits is known.
"""

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from hvd_sparse.exchange import remains
from hvd_sparse.keras.exchanging import exchange_of

SIZE = 96
BEFORE, AFTER = 4, 3  # steps
RECIPES = {
    "dense": hvd.recipes.dense,
    "topk": lambda: hvd.recipes.topk(0.05),
    "hitopk": lambda: hvd.recipes.hitopk(0.05),
    "sparcml": lambda: hvd.recipes.sparcml(0.05, collective="dynamic"),
    "updates": lambda: hvd.recipes.updates(hvd.recipes.hitopk(0.05)),
    "recommended": lambda: hvd.recipes.recommended(0.05),
    "blocks": lambda: hvd.recipes.blocks(4),
    "dropping": lambda: hvd.recipes.dropping(0.05),
    "schedule": lambda: hvd.recipes.schedule([(0, hvd.recipes.hitopk(0.05)), (1, hvd.recipes.topk(0.02))]),
}


def gradient(rank: int, step: int) -> np.ndarray:
    return np.random.default_rng([rank, step]).integers(-8, 9, SIZE).astype("f4") * 48


class Rank:
    """A rank's model and state; steps are eager."""

    def __init__(self, recipe, optimizer=lambda: keras.optimizers.SGD(1.0), **kept):
        self.model = keras.Sequential([keras.Input((SIZE,)), keras.layers.Dense(1, use_bias=False)])
        self.model.compile(hvd.DistributedOptimizer(optimizer(), aggregator=recipe()), "mse")
        self.state = hvd.elastic.KerasState(self.model, step=0, sizes=[], **kept)
        self.state.register_reset_callbacks([lambda: None])  # leaves the learning rate alone
        self.beginning = self.weights

    @property
    def weights(self) -> np.ndarray:
        return self.model.get_weights()[0][:, 0].copy()

    def train(self, steps: int) -> None:
        for _ in range(steps):
            own = gradient(hvd.rank(), self.state.step)
            self.model.optimizer.set_epoch(self.state.step // 3)
            self.model.optimizer.apply_gradients([(tf.constant(own[:, None]), self.model.trainable_variables[0])])
            self.state.step += 1
            self.state.sizes = [*self.state.sizes, hvd.size()]
            self.state.commit()

    def waiting(self) -> np.ndarray:
        """The sum of all ranks' residuals; a collective."""
        (found,) = exchange_of(self.model.optimizer).residual_sum().residuals.values() or [np.zeros(SIZE)]
        return np.ravel(found)

    def own_waiting(self) -> np.ndarray:
        planned = exchange_of(self.model.optimizer).planned
        found = [each for key, each in remains.of(planned, False).pieces.items() if key.startswith("residual")]
        return np.ravel(found[0]) if found else np.zeros(SIZE, "f4")


def means(sizes) -> np.ndarray:
    """The sum of the mean gradients of steps with these numbers of ranks."""
    return sum(
        np.mean([gradient(rank, step) for rank in range(size)], axis=0, dtype="f8") for step, size in enumerate(sizes)
    )
