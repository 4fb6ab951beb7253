"""One rank of an elastic job whose gradients are integers that depend on rank and step, so that all sums are known.

    python -m tests.faults.elastic_ledger FOLDER --recipe hitopk

It trains until FOLDER/finish exists, and writes down what it keeps at each commit, how ranks met after each change, and
how it ended: `ledger.py` checks the sums.
"""

from __future__ import annotations

import argparse
import pathlib
import time

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd
from benchmarks.machines.loopback_job import Log
from hvd_sparse.exchange import remains
from hvd_sparse.keras.exchanging import exchange_of
from tests.faults.ledger import SIZE, gradient

RECIPES = {
    "dense": hvd.recipes.dense,
    "hitopk": lambda: hvd.recipes.hitopk(density=0.05),
    "recommended": lambda: hvd.recipes.recommended(density=0.05),
}


class Ledger(hvd.elastic.KerasState):
    """Writes down what it finds after a change, and what its next commit will have."""

    def before_commit(self):
        say(event="waiting", commit=self._number + 1, values=own_waiting(self.model).tolist())

    def meet(self):
        super().meet()
        if not self._ranks:
            return
        kept = self._commits[self._number]["exchanges"]["optimizer"]
        say(
            event="met",
            commit=self._number,
            before=self._meeting.before,
            gone=[int(rank) for rank in self._meeting.gone],
            handed=kept.planned is None or kept.handed is not None,  # None: nothing was exchanged since
        )


def own_waiting(model):
    exchange = exchange_of(model.optimizer)
    if not exchange.has_begun:
        return np.zeros(SIZE, "f4")
    pieces = remains.of(exchange.planned, False).pieces
    found = [each for key, each in pieces.items() if key.startswith("residual")]
    return np.ravel(found[0]) if found else np.zeros(SIZE, "f4")


def waiting(model):
    found = list(exchange_of(model.optimizer).residual_sum().residuals.values())
    return np.ravel(found[0]) if found else np.zeros(SIZE, "f4")


@hvd.elastic.run
def train(state):
    say(event="trains", rank=hvd.rank(), size=hvd.size(), step=state.step)
    variable, finish = state.model.trainable_variables[0], False
    while not finish:
        own = gradient(hvd.rank(), state.step)
        state.model.optimizer.apply_gradients([(tf.constant(own[:, None]), variable)])
        state.before_commit()  # at once: the others may already have it when this rank dies
        state.step += 1
        state.sizes = [*state.sizes, hvd.size()]
        say(event="step", rank=hvd.rank(), size=hvd.size(), step=state.step)
        time.sleep(options.pace)
        state.commit()
        asked = int((options.folder / "finish").exists())
        finish = int(hvd.allreduce(tf.constant(asked), op=hvd.Max, name="finish")) > 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--recipe", choices=RECIPES, default="dense")
    parser.add_argument("--pace", type=float, default=0.05, help="seconds that each step takes longer")
    options = parser.parse_args()
    say = Log(options.folder)
    say(event="started")
    hvd.init()
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((SIZE,)), keras.layers.Dense(1, use_bias=False)])
    optimizer = keras.optimizers.SGD(1.0)
    model.compile(hvd.DistributedOptimizer(optimizer, aggregator=RECIPES[options.recipe]()), "mse")
    begins = model.get_weights()[0][:, 0].tolist()
    state = Ledger(model, step=0, sizes=[])
    state.register_reset_callbacks([lambda: None])  # the learning rate stays 1
    train(state)
    say(
        event="trained",
        size=hvd.size(),
        begins=begins,
        weights=model.get_weights()[0][:, 0].tolist(),
        waiting=waiting(model).tolist(),
        sizes=state.sizes,
    )
