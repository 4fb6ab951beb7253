"""A Keras optimizer whose gradients are averaged over all ranks before they are applied."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from hvd_sparse import arguments, buckets, keras_hooks, telemetry
from hvd_sparse.aggregators import Aggregator
from hvd_sparse.gradient_exchange import GradientExchange
from hvd_sparse.spec import Rate
from hvd_sparse.topology import Compression


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    aggregator: Aggregator | None = None,
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    bucket_bytes: int | None = None,
    first_bucket_bytes: int = buckets.FIRST_BUCKET_BYTES,
    local_layers: Iterable[keras.layers.Layer] | keras.layers.Layer = (),
    scale_local_gradients: bool = True,
    telemetry: telemetry.Telemetry | None = None,
    **horovods: Any,
) -> keras.optimizers.Optimizer:
    """Makes a Keras optimizer average its gradients over all ranks.

    The exchange runs after Keras has accumulated gradients. Dense recipes clip the mean, as Horovod does; sparse ones
    clip each rank's own gradient before the residual is added, at threshold / sqrt(P). The optimizer keeps its class,
    its config and its variables, so that a model saved with it loads without this package (`hvd.load_model` makes it
    distributed again). New on it are `exchange`, `register_local_var(variable)` and `set_epoch(epoch)`.

    Under `mixed_float16` Keras wraps it in loss scaling, whose decision to skip a step is then agreed on by all
    ranks. Where Keras would compile the train step by XLA, the exchange is kept out of it (`compiled_train_step`).

    Args:
        optimizer: any Keras optimizer, not used yet; one with loss scaling around it is taken apart. It is changed in
            place and returned.
        name: collectives are named after it; the default is the optimizer's name.
        aggregator: a recipe of `hvd.recipes`; the default is dense.
        compression: `hvd.Compression.fp16` sends dense gradients as float16. Recipes take `wire_dtype` instead.
        sparse_as_dense: exchange `tf.IndexedSlices` as dense tensors; by default their rows travel exactly.
        bucket_bytes: gradients are exchanged in buckets of this size; by default 25 MiB, and an eighth of all gradients
            where the recipe sends all of them (`GradientExchange`).
        first_bucket_bytes: the first bucket is closed once it holds this much; a small one starts earlier.
        local_layers: layers whose variables are not exchanged.
        scale_local_gradients: divide the gradients of local variables by P, as Horovod does.
        telemetry: measures the exchanges.
        **horovods: Horovod's other arguments; one that asks for something is refused with what to do instead.

    Raises:
        TypeError: where it is no Keras optimizer, or an argument is unknown.
        ValueError: where it is distributed or used already, or an argument cannot be had.
    """
    inner = without_loss_scaling(optimizer)
    _require_new(inner)
    distribute(
        inner,
        aggregator,
        compression,
        local_layers,
        name=name or inner.name,
        sparse_as_dense=sparse_as_dense,
        bucket_bytes=bucket_bytes,
        first_bucket_bytes=first_bucket_bytes,
        scale_local_gradients=scale_local_gradients,
        telemetry=telemetry,
        **horovods,
    )
    return optimizer


def distribute(
    optimizer: keras.optimizers.Optimizer,
    aggregator: Aggregator | None,
    compression: Any,
    local_layers: Iterable[keras.layers.Layer] | keras.layers.Layer = (),
    **options: Any,
) -> None:
    """Makes an optimizer distributed that may have been used; see `DistributedOptimizer`."""
    own = {name: value for name, value in options.items() if name in inspect.signature(GradientExchange).parameters}
    arguments.refuse({name: value for name, value in options.items() if name not in own})
    brought = {"name": optimizer.name, "learning_rate": _rate_of(optimizer), **own}
    exchange = GradientExchange(arguments.choose(aggregator, compression), **brought)
    exchange.register_local_layers([local_layers] if isinstance(local_layers, keras.layers.Layer) else local_layers)
    keras_hooks.distribute(optimizer, exchange)


def without_loss_scaling(optimizer: Any) -> Any:
    """The optimizer inside one that scales the loss; any other as it is."""
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    return optimizer.inner_optimizer if scales else optimizer


def _rate_of(optimizer: keras.optimizers.Optimizer) -> Rate:
    """Gives the optimizer's learning rate without keeping it alive: it holds the exchange that asks."""
    reference = weakref.ref(optimizer)

    def rate() -> Any:
        alive = reference()
        if alive is None:
            raise ReferenceError("The optimizer of this exchange is gone.")
        return alive.learning_rate

    return rate


def _require_new(optimizer: Any) -> None:
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"Expected a Keras optimizer, as keras.optimizers.SGD(0.1), got {type(optimizer).__name__}; for other "
            "optimizers average the gradients with hvd.DistributedGradientTape."
        )
    if keras_hooks.exchange_of(optimizer) is not None:
        raise ValueError(
            f"The optimizer {optimizer.name} is distributed already, and a second exchange would average averages: "
            "wrap it once."
        )
    if optimizer.built:
        raise ValueError(
            f"The optimizer {optimizer.name} is in use already, perhaps in a compiled step that does not exchange: "
            "wrap it before compile and before the first step. To go on with a saved model use hvd.load_model(path)."
        )
    if tf.distribute.has_strategy():
        raise ValueError(
            "hvd.DistributedOptimizer exchanges between processes of one device each and cannot work inside a "
            "tf.distribute strategy: leave the strategy out and start one process for each device."
        )
