"""A gradient tape whose gradients are averaged over all ranks."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from hvd_sparse import arguments, recipes
from hvd_sparse.aggregators import Aggregator
from hvd_sparse.gradient_exchange import GradientExchange, resource
from hvd_sparse.spec import describe
from hvd_sparse.topology import Compression

# A loop makes a new tape for each step, but what is kept back has to outlive it: by recipe and variables.
_exchanges: dict[tuple[str, tuple[int, ...]], GradientExchange] = {}


class DistributedGradientTape:
    """Wraps a `tf.GradientTape`; `gradient` returns the means over all ranks, everything else is the tape's own.

        with tf.GradientTape() as tape:
            loss = ...
        tape = hvd.DistributedGradientTape(tape, aggregator=hvd.recipes.hitopk(density=0.01))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    A new one may be made for each step: tapes with the same recipe and the same variables go on with the same exchange
    and what it keeps back. To save that, to measure it or to tell it the epoch, make the exchange yourself, once, and
    pass it in place of the recipe: `exchange = hvd.GradientExchange(recipe)`.

    Clip after `gradient` with a dense recipe. With a sparse one clip each rank's own gradient, before the exchange:
    `exchange(clipped, variables)`. Under loss scaling use `hvd.LossScaleOptimizer` and a plain tape.

    Args:
        tape: records; it may have been left already.
        aggregator: a recipe of `hvd.recipes`, or an exchange; the default is dense.
        compression: as for `DistributedOptimizer`.
        sparse_as_dense: as for `DistributedOptimizer`.
        local_layers: as for `DistributedOptimizer`.
        scale_local_gradients: as for `DistributedOptimizer`.
        **horovods: as for `DistributedOptimizer`.
    """

    def __init__(
        self,
        tape: tf.GradientTape,
        aggregator: Aggregator | GradientExchange | None = None,
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
        local_layers: Iterable[keras.layers.Layer] | keras.layers.Layer = (),
        scale_local_gradients: bool = True,
        **horovods: Any,
    ):
        arguments.refuse(horovods)
        self._tape = tape
        layers = [local_layers] if isinstance(local_layers, keras.layers.Layer) else list(local_layers)
        self._exchange: GradientExchange | None = None
        if isinstance(aggregator, GradientExchange):
            if layers or sparse_as_dense or compression is not Compression.none:
                raise ValueError("An exchange brings its own options: pass them to hvd.GradientExchange(...).")
            self._exchange = aggregator
        else:
            self._aggregator = arguments.choose(aggregator, compression) or recipes.dense()
        self._epoch: int | None = None
        self._options: dict[str, Any] = {
            "sparse_as_dense": sparse_as_dense,
            "scale_local_gradients": scale_local_gradients,
        }
        self._local_layers = layers
        self._local_sources: list[Any] = []

    def set_epoch(self, epoch: int) -> None:
        """Tells which epoch begins, from 0, in a loop that makes its tape anew for each step outside of `tf.function`.

        Raises:
            RuntimeError: inside of a `tf.function`, where only the epoch of the trace would be told.
        """
        if tf.inside_function():
            raise RuntimeError(
                "set_epoch inside a tf.function would run once, when it is traced: make an exchange = "
                "hvd.GradientExchange(recipe) outside, pass it to the tape and call exchange.set_epoch(epoch)."
            )
        self._epoch = epoch

    def register_local_source(self, source: Any) -> None:
        """Keeps a variable local: its gradient is not exchanged, only divided by the number of ranks."""
        if self._exchange is not None:
            raise RuntimeError(
                "Register local variables on the exchange that was passed: register_local_var(variable)."
            )
        self._local_sources.append(source)

    @tf.autograph.experimental.do_not_convert
    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, **options: Any) -> Any:
        """The mean over all ranks of the gradients of `target`.

        Args:
            target: as for `tf.GradientTape.gradient`.
            sources: variables, in any nested structure; the same ones at every step.
            output_gradients: as for `tf.GradientTape.gradient`.
            **options: as for `tf.GradientTape.gradient`.

        Returns:
            Means in the structure of `sources`; None where there is no gradient.

        Raises:
            TypeError: where a source is not a variable.
            ValueError, tf.errors.InvalidArgumentError: as `GradientExchange`.
        """
        variables = tf.nest.flatten(sources)
        for variable in variables:
            if not isinstance(variable, (tf.Variable, keras.Variable)):
                raise TypeError(
                    f"Expected variables as sources, got {type(variable).__name__}: what is kept back belongs to a "
                    "variable. Average other tensors with hvd.allreduce."
                )
        gradients = self._tape.gradient(target, variables, output_gradients, **options)
        exchange = self._exchange or self._shared_exchange(variables)
        if self._epoch is not None:
            exchange.set_epoch(self._epoch)
        means = exchange(gradients, variables)
        return tf.nest.pack_sequence_as(sources, means)

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._tape.__exit__(*exception)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def _shared_exchange(self, variables: Sequence[Any]) -> GradientExchange:
        """The exchange of all tapes with this recipe, these options and these variables."""
        local = [*self._local_sources, *(weight for layer in self._local_layers for weight in layer.trainable_weights)]
        account = [describe(self._aggregator), self._options, sorted(id(resource(variable)) for variable in local)]
        key = (json.dumps(account, sort_keys=True), tuple(id(resource(variable)) for variable in variables))
        if key not in _exchanges:
            exchange = GradientExchange(self._aggregator, name="DistributedGradientTape", **self._options)
            for variable in local:
                exchange.register_local_var(variable)
            _exchanges[key] = exchange
            weakref.finalize(resource(variables[0]), _exchanges.pop, key, None)
        return _exchanges[key]
