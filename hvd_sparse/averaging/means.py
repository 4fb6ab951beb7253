"""The exact mean of the models of all ranks."""

from __future__ import annotations

from typing import Any

import keras

from hvd_sparse.averaging.flat import NAMES, FlatVariables
from hvd_sparse.averaging.optimizer import averaged
from hvd_sparse.averaging.participant import Participant
from hvd_sparse.optimizers import slots


def mean(model_or_optimizer: keras.Model | keras.optimizers.Optimizer) -> MeanOfModels:
    """Gathers the exact mean of all ranks' models; a collective: every rank calls it, between the same two steps.

    It covers the trainable weights, the optimizer's slots, and a model's other variables of float32, float16 or
    bfloat16, such as the statistics of batch normalisation.

        with hvd.averaging.mean(model):
            model.evaluate(images, labels)
            if hvd.rank() == 0:
                model.save("model.keras")

    Inside the block the model holds the mean on every rank, and saving it needs no other rank; after the block each
    rank has its own model again.

    Args:
        model_or_optimizer: a model compiled with an optimizer made by `ModelAveraging`, or that optimizer.

    Raises:
        ValueError: if the optimizer does not average models.
        RuntimeError: before the first step.
        tf.errors.InvalidArgumentError: on every rank, if a rank's values are not finite.

    Steps and bytes sent per rank: those of `Reliable` for all these variables. Memory: the mean and the rank's own
    values.
    """
    of_model = isinstance(model_or_optimizer, keras.Model)
    optimizer = model_or_optimizer.optimizer if of_model else model_or_optimizer
    participant = averaged(optimizer)
    participant.world  # noqa: B018 - raises before the first step
    untrained = model_or_optimizer.non_trainable_variables if of_model else []
    others = [each for each in (*untrained, *slots.floats(optimizer)) if each.dtype in NAMES]
    return MeanOfModels(FlatVariables([*participant.variables, *others]), participant)


class MeanOfModels:
    """The exact mean of all ranks' models, to be swapped in for a rank's own model and out again."""

    def __init__(self, variables: FlatVariables, participant: Participant):
        self._variables = variables
        self._participant = participant
        self._mean = participant.exact_mean(variables, "mean")
        self._own: Any = None
        self._calls = participant.calls

    def __enter__(self) -> MeanOfModels:
        self.put()
        return self

    def __exit__(self, *error: Any) -> None:
        self.take_back()

    @property
    def is_of_now(self) -> bool:
        """Whether no step has been made since the mean was gathered."""
        return self._calls == self._participant.calls

    def put(self) -> None:
        """Gives the model the mean, and keeps its own values.

        Raises:
            RuntimeError: if a step was made since the mean was gathered.
        """
        if not self.is_of_now:
            raise RuntimeError("The models were trained after their mean was gathered: call hvd.averaging.mean again.")
        if self._own is None:
            self._own = self._variables.read()
        self._variables.assign(self._mean)
        self._participant.holds_mean(True)

    def take_back(self) -> None:
        """Gives the model the values that this rank had before `put`.

        Raises:
            RuntimeError: if a step was made on the mean.
        """
        if not self.is_of_now:
            raise RuntimeError(
                "The model was trained while it held the mean of all ranks, and continues from it: leave "
                "the hvd.averaging.mean block before the next step, or call hvd.averaging.resynchronise to start from "
                "the mean."
            )
        self._variables.assign(self._own)
        self._participant.holds_mean(False)
