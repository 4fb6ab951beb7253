"""A gradient tape whose gradients are averaged over all ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from hvd_sparse.aggregators import Aggregator
from hvd_sparse.compression import Compression
from hvd_sparse.exchange.gradients import GradientExchange
from hvd_sparse.exchange.shared import SharedExchanges
from hvd_sparse.horovod_api.values import Average
from hvd_sparse.keras import horovod_arguments
from hvd_sparse.keras.optimizer import Layers, as_layers
from hvd_sparse.optimizers.variables import resource
from hvd_sparse.spec import describe
from hvd_sparse.transport.process_sets import ProcessSet

_exchanges = SharedExchanges()  # a loop creates a new tape for each step, but the residual has to outlive it
_NOTHING_ASKED = {**horovod_arguments.exchange_options(), "sparse_as_dense": False, "scale_local_gradients": True}


class DistributedGradientTape:
    """Wraps a `tf.GradientTape`; `gradient` returns the means over all ranks, everything else is the tape's own.

        with tf.GradientTape() as tape:
            loss = ...
        tape = hvd.DistributedGradientTape(tape, aggregator=hvd.recipes.hitopk(density=0.01))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    You may create a new one for each step: tapes with the same recipe and the same variables share one exchange and its
    residual, which live as long as the variables. A new variable, such as the head of another task, begins another
    exchange. Once an old head is gone, what was not sent of the variables that stay goes on in the next exchange that
    begins, and what was not sent of the head is dropped.

    To save the residual, to measure the exchange or to set its epoch, create the exchange yourself, once, and pass it
    instead of the recipe: `exchange = hvd.GradientExchange(recipe)`.

    With a dense recipe, clip after `gradient`. With a sparse one, clip each rank's own gradient before the exchange:
    `exchange(clipped, variables)`. Under loss scaling use `hvd.LossScaleOptimizer` and a plain tape. To accumulate, add
    up the gradients of a plain tape and then call `exchange(sums, variables)`.

    Positional arguments are in Horovod's order; arguments that Horovod does not have are keyword-only, except that a
    recipe or an exchange may be the second argument.

    Args:
        gradtape: the tape that records; its context may already have ended.
        device_dense: as for `DistributedOptimizer`.
        device_sparse: as for `DistributedOptimizer`.
        compression: as for `DistributedOptimizer`.
        sparse_as_dense: as for `DistributedOptimizer`.
        op: as for `DistributedOptimizer`.
        gradient_predivide_factor: as for `DistributedOptimizer`.
        num_groups: as for `DistributedOptimizer`.
        groups: as for `DistributedOptimizer`.
        process_set: as for `DistributedOptimizer`.
        scale_local_gradients: as for `DistributedOptimizer`.
        aggregator: a recipe of `hvd.recipes`, or an exchange; the default is dense.
        local_layers: as for `DistributedOptimizer`.

    Raises:
        TypeError, ValueError: if an argument is not supported; the message says what to do instead.
    """

    def __init__(
        self,
        gradtape: tf.GradientTape,
        device_dense: Any = "",
        device_sparse: str = "",
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
        op: int = Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Any = None,
        process_set: Any = None,
        scale_local_gradients: bool = True,
        *,
        aggregator: Aggregator | GradientExchange | None = None,
        local_layers: Layers = (),
    ):
        if isinstance(device_dense, GradientExchange) and aggregator is None:
            aggregator, device_dense = device_dense, ""
        asked = horovod_arguments.exchange_options(
            None if isinstance(aggregator, GradientExchange) else aggregator,
            compression,
            op,
            gradient_predivide_factor,
            num_groups,
            groups,
            process_set,
            device_dense,
            device_sparse,
        )
        self._tape = gradtape
        self._exchange: GradientExchange | None = None
        self._options: dict[str, Any] = {
            **asked,
            "sparse_as_dense": sparse_as_dense,
            "scale_local_gradients": scale_local_gradients,
        }
        self._local_layers = as_layers(local_layers)
        self._local_sources: list[Any] = []
        self._epoch: int | None = None
        if isinstance(aggregator, GradientExchange):
            if self._local_layers or self._options != _NOTHING_ASKED:
                raise ValueError("An exchange has its own options: pass them to hvd.GradientExchange(...).")
            self._exchange = aggregator

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch that begins, from 0, in a loop that creates a tape for each step outside `tf.function`.

        Raises:
            RuntimeError: inside a `tf.function`, where only the epoch during tracing would be set.
        """
        if tf.inside_function():
            raise RuntimeError(
                "set_epoch inside a tf.function would run only once, during tracing: create exchange = "
                "hvd.GradientExchange(recipe) outside, pass it to the tape, and call exchange.set_epoch(epoch)."
            )
        self._epoch = epoch

    def register_local_source(self, source: Any) -> None:
        """Keeps a variable local, so its gradient is not exchanged, only divided by the number of ranks."""
        if self._exchange is not None:
            raise RuntimeError(
                "Register local variables on the exchange that was passed: register_local_var(variable)."
            )
        self._local_sources.append(source)

    @tf.autograph.experimental.do_not_convert
    def gradient(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False, **options: Any
    ) -> Any:
        """The mean over all ranks of the gradients of `target`, or the sum with `op=hvd.Sum`.

        Args:
            target: as for `tf.GradientTape.gradient`.
            sources: variables, in any nested structure; the same ones in every step. With `dense` or `torus2d` also
                tensors: each is averaged by an all-reduce of its own.
            output_gradients: as for `tf.GradientTape.gradient`.
            use_generic_names: has no effect: collectives are named after the exchange.
            **options: as for `tf.GradientTape.gradient`.

        Returns:
            Means in the structure of `sources`; None if there is no gradient.

        Raises:
            TypeError: if a source is not a variable and the recipe has a residual.
            ValueError, tf.errors.InvalidArgumentError: as for `GradientExchange`.
        """
        flat = tf.nest.flatten(sources)
        gradients = self._tape.gradient(target, flat, output_gradients, **options)
        in_exchange = [number for number, source in enumerate(flat) if _is_variable(source)]
        variables = [flat[number] for number in in_exchange]
        exchange = self._exchange or self._shared_exchange(variables)
        if self._epoch is not None:
            exchange.set_epoch(self._epoch)
        others = set(range(len(flat))) - set(in_exchange)
        means = {number: self._mean_of_tensor(exchange, flat[number], gradients[number]) for number in sorted(others)}
        if variables:
            exchanged = exchange([gradients[number] for number in in_exchange], variables)
            means.update(zip(in_exchange, exchanged, strict=True))
        return tf.nest.pack_sequence_as(sources, [means[number] for number in range(len(flat))])

    def get_local_and_global_gradients(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """The (source, gradient) pairs of local sources, and those of all others; arguments as for `gradient`."""
        flat = tf.nest.flatten(sources)
        pairs = list(zip(flat, self.gradient(target, flat, output_gradients, use_generic_names), strict=True))
        local = {id(resource(source)) for source in self._locals()}
        return (
            [(source, gradient) for source, gradient in pairs if id(resource(source)) in local],
            [(source, gradient) for source, gradient in pairs if id(resource(source)) not in local],
        )

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._tape.__exit__(*exception)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def _shared_exchange(self, variables: Sequence[Any]) -> GradientExchange:
        """The exchange of all tapes with this recipe, these options and these variables."""
        local = {id(resource(source)) for source in self._locals() if _is_variable(source)}
        described = {name: _described(option) for name, option in self._options.items()}
        return _exchanges.of(
            variables,
            [id(resource(variable)) in local for variable in variables],
            json.dumps(described, sort_keys=True),
            lambda: GradientExchange(name="DistributedGradientTape", **self._options),
        )

    def _locals(self) -> list[Any]:
        if self._exchange is not None:
            return self._exchange.local_variables()
        return [*self._local_sources, *(weight for layer in self._local_layers for weight in layer.trainable_weights)]

    def _mean_of_tensor(self, exchange: GradientExchange, source: Any, gradient: Any) -> Any:
        if any(source is local for local in self._locals()):
            return None if gradient is None else exchange.scaled(gradient)
        return exchange.reduce_tensor(gradient)


def PartialDistributedGradientTape(  # noqa: N802 - Horovod's name
    gradtape: tf.GradientTape,
    device_dense: Any = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = None,
    local_layers: Layers = None,
    scale_local_gradients: bool = True,
    *,
    aggregator: Aggregator | None = None,
) -> DistributedGradientTape:
    """Wraps a `tf.GradientTape` so that gradients are averaged over all ranks, except those of some layers.

    Args:
        gradtape: as for `DistributedGradientTape`, like all arguments except for their order.
        device_dense: see there.
        device_sparse: see there.
        compression: see there.
        sparse_as_dense: see there.
        op: see there.
        gradient_predivide_factor: see there.
        num_groups: see there.
        groups: see there.
        process_set: see there.
        local_layers: one layer or several; their gradients stay this rank's own, divided by P.
        scale_local_gradients: whether they are divided.
        aggregator: see there.

    Raises:
        TypeError, ValueError: as for `DistributedGradientTape`.
    """
    return DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
        aggregator=aggregator,
        local_layers=local_layers,
    )


def _is_variable(source: Any) -> bool:
    return isinstance(source, (tf.Variable, keras.Variable))


def _described(option: Any) -> Any:
    """A JSON-serializable description that distinguishes the options of two tapes."""
    return [option.process_set_id, option.ranks] if isinstance(option, ProcessSet) else describe(option)
