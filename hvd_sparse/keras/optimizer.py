"""A Keras optimizer whose gradients are averaged over all ranks before they are applied."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Iterable
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from hvd_sparse.aggregators import Aggregator
from hvd_sparse.compression import Compression
from hvd_sparse.exchange import plan, telemetry
from hvd_sparse.exchange.gradients import GradientExchange
from hvd_sparse.horovod_api.values import Average
from hvd_sparse.keras import copies, exchanging, horovod_arguments, local_optimizer, momentum
from hvd_sparse.optimizers import attached, slots
from hvd_sparse.spec import Rate

Layers: TypeAlias = "Iterable[keras.layers.Layer] | keras.layers.Layer | None"


@horovod_arguments.in_either_order
def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = None,
    scale_local_gradients: bool = True,
    *,
    aggregator: Aggregator | None = None,
    bucket_bytes: int | None = None,
    first_bucket_bytes: int = plan.FIRST_BUCKET_BYTES,
    local_layers: Layers = (),
    telemetry: telemetry.Telemetry | None = None,
    use_locking: bool = False,
) -> keras.optimizers.Optimizer:
    """Makes a Keras optimizer average its gradients over all ranks.

    Positional arguments may be in the order of `horovod.tensorflow.keras` or of `horovod.tensorflow`; arguments that
    Horovod does not have are keyword-only.

    The exchange runs after gradients are accumulated. Dense recipes clip the mean, as Horovod does; sparse ones clip
    each rank's own gradient before the residual is added, at threshold / sqrt(P). The optimizer keeps its class, its
    config and its variables, so a model saved with it loads without this package (`hvd.load_model` makes it distributed
    again). It gains `exchange`, `register_local_var(variable)` and `set_epoch(epoch)`.

    Under `mixed_float16` Keras wraps it in loss scaling, and all ranks then agree on which steps to skip. If Keras
    would compile the train step by XLA, the exchange is kept out of it (`compiled_train_step`).

    Args:
        optimizer: any Keras optimizer that has not been used yet; in a loss-scaling one, the inner optimizer is made
            distributed. It is changed in place and returned.
        name: prefix of the names of collectives; the default is the optimizer's name.
        device_dense: must be "", as collectives run where their tensors are.
        device_sparse: must be "", likewise.
        compression: `hvd.Compression.fp16` sends values as float16: dense gradients, or those of the recipe, like its
            `wire_dtype="float16"`.
        sparse_as_dense: exchange `tf.IndexedSlices` as dense tensors; by default their rows travel exactly.
        gradient_predivide_factor: affects only the rounding; other values than 1.0 need `hvd.Average`, and values that
            do not travel as float16.
        op: `hvd.Average`; or `hvd.Sum` for P times the mean, whatever the recipe. The residual of a sparse recipe is in
            units of the gradient in both. Thresholds such as `clipnorm` then apply to the sum.
        backward_passes_per_step: if n > 1, the gradients of n passes are summed before they are exchanged and applied;
            n becomes the optimizer's `gradient_accumulation_steps`. `iterations` and learning rate schedules count
            passes, as in Horovod. A saved model contains n but not that the gradients are summed: pass this to
            `hvd.load_model`, too.
        average_aggregated_gradients: divide the sum of n passes by n.
        num_groups: has no effect: gradients are always fused, in buckets of `bucket_bytes`.
        groups: has no effect, likewise: a number above 0, or lists of variables.
        process_set: the ranks that exchange with each other; all others apply their own gradients and are not waited
            for. Only for recipes without nodes: `dense`, `topk`, `mstopk`, `sparcml`. None means all ranks.
        scale_local_gradients: divide the gradients of local variables by P, as Horovod does.
        aggregator: a recipe of `hvd.recipes`; the default is dense.
        bucket_bytes: gradients are exchanged in buckets of this size; by default 25 MiB, or an eighth of all gradients
            if the recipe sends all of them (`GradientExchange`).
        first_bucket_bytes: the first bucket is closed once it holds this much; a small one starts earlier.
        local_layers: layers whose variables are not exchanged.
        telemetry: measures the exchanges.
        use_locking: has no effect: Keras's optimizers have no locks.

    Raises:
        TypeError: if it is not a Keras optimizer, or an argument is unknown.
        ValueError: if it is already distributed or used, or an argument is not supported.
    """
    inner = slots.without_loss_scaling(optimizer)
    _require_new(inner)
    if inner.gradient_accumulation_steps and backward_passes_per_step != 1:
        raise ValueError(
            f"backward_passes_per_step={backward_passes_per_step} and the optimizer's own gradient_accumulation_steps="
            f"{inner.gradient_accumulation_steps} both ask for accumulation: pass only one of them. Horovod's sums "
            "gradients, unless average_aggregated_gradients=True; Keras's averages them."
        )
    distribute(
        inner,
        aggregator,
        compression,
        local_layers,
        backward_passes_per_step,
        average_aggregated_gradients,
        name=name or inner.name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        bucket_bytes=bucket_bytes,
        first_bucket_bytes=first_bucket_bytes,
        telemetry=telemetry,
    )
    return optimizer


def PartialDistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    groups: Any = None,
    process_set: Any = None,
    local_layers: Layers = None,
    scale_local_gradients: bool = True,
    **options: Any,
) -> keras.optimizers.Optimizer:
    """Makes a Keras optimizer average its gradients over all ranks, except those of some layers.

    Args:
        optimizer: as for `DistributedOptimizer`, like all arguments except for their order.
        name: see there.
        device_dense: see there.
        device_sparse: see there.
        compression: see there.
        sparse_as_dense: see there.
        gradient_predivide_factor: see there.
        op: see there.
        groups: see there.
        process_set: see there.
        local_layers: one layer or several; their gradients stay this rank's own, divided by P. They need not be built.
        scale_local_gradients: whether they are divided.
        **options: the other arguments of `DistributedOptimizer`, such as `aggregator`.

    Raises:
        TypeError, ValueError: as for `DistributedOptimizer`.
    """
    return DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        groups=groups,
        process_set=process_set,
        local_layers=local_layers,
        scale_local_gradients=scale_local_gradients,
        **options,
    )


def distribute(
    optimizer: keras.optimizers.Optimizer,
    aggregator: Aggregator | None = None,
    compression: Any = Compression.none,
    local_layers: Layers = (),
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    local_variables: Iterable[Any] = (),
    **options: Any,
) -> None:
    """Makes an optimizer distributed that may already have been used; see `DistributedOptimizer`.

    The local variables are not exchanged, like those of the local layers.
    """
    again = functools.partial(
        distribute,
        aggregator=aggregator,
        compression=compression,
        local_layers=local_layers,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        **options,
    )
    horovods = _taken_by(horovod_arguments.exchange_options, options)
    asked = horovod_arguments.exchange_options(aggregator, compression, **horovods)
    own = {key: value for key, value in options.items() if key not in horovods}
    unknown = sorted(set(own) - set(_taken_by(GradientExchange, own)))
    if unknown:
        raise TypeError(f"Unknown argument {unknown[0]!r}.")
    passes = _passes(optimizer, backward_passes_per_step, average_aggregated_gradients)
    brought = {
        "name": optimizer.name,
        "learning_rate": _rate_of(optimizer),
        "momentum": momentum.of(optimizer, slots.momenta),
        "optimizer": local_optimizer.of(optimizer),
    }
    exchange = GradientExchange(**{**brought, **own, **asked})
    momentum.check(optimizer, exchange.aggregator)
    local_optimizer.check(optimizer, exchange.aggregator)
    exchange.register_local_layers(as_layers(local_layers))
    for variable in local_variables:
        exchange.register_local_var(variable)
    exchanging.distribute(optimizer, exchange, passes, again)
    copies.remember(optimizer, again)


def as_layers(local_layers: Layers) -> list[keras.layers.Layer]:
    """One layer, several or None as a list; raises ValueError if one of them is not a layer."""
    layers = [local_layers] if isinstance(local_layers, keras.layers.Layer) else list(local_layers or ())
    for layer in layers:
        if not isinstance(layer, keras.layers.Layer):
            raise ValueError(f"Expected local layers to be Keras layers, got {type(layer).__name__}.")
    return layers


def _rate_of(optimizer: keras.optimizers.Optimizer) -> Rate:
    """Returns a function for the optimizer's learning rate that does not keep it alive, as it holds the exchange."""
    reference = weakref.ref(optimizer)

    def rate() -> Any:
        alive = reference()
        if alive is None:
            raise ReferenceError("The optimizer of this exchange no longer exists.")
        return alive.learning_rate

    return rate


def _taken_by(function: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The options that are arguments of a function."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in options.items() if name in known}


def _passes(optimizer: keras.optimizers.Optimizer, count: Any, averaged: bool) -> exchanging.Passes:
    """How Horovod would accumulate, for an optimizer that may already do so, such as one from a file."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"Expected backward_passes_per_step to be an integer of at least 1, got {count!r}.")
    if count > 1 and optimizer.built and optimizer.gradient_accumulation_steps != count:
        raise ValueError(
            f"backward_passes_per_step={count} differs from the gradient_accumulation_steps="
            f"{optimizer.gradient_accumulation_steps} of the optimizer {optimizer.name}: pass the same number, or "
            "compile the model with a new optimizer."
        )
    return exchanging.Passes(count, bool(averaged))


def _require_new(optimizer: Any) -> None:
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"Expected a Keras optimizer, such as keras.optimizers.SGD(0.1), got {type(optimizer).__name__}; for "
            "other optimizers, average the gradients with hvd.DistributedGradientTape."
        )
    if exchanging.exchange_of(optimizer) is not None:
        raise ValueError(
            f"The optimizer {optimizer.name} is already distributed, and a second exchange would average averages: "
            "wrap it once."
        )
    if attached.to(optimizer) is not None:
        raise ValueError(f"The optimizer {optimizer.name} already communicates in another way: wrap it once.")
    if optimizer.built:
        raise ValueError(
            f"The optimizer {optimizer.name} is already in use, perhaps in a compiled step that does not exchange: "
            "wrap it before compile and before the first step. To resume from a saved model, use hvd.load_model(path)."
        )
    if tf.distribute.has_strategy():
        raise ValueError(
            "hvd.DistributedOptimizer exchanges between processes of one device each and cannot work inside a "
            "tf.distribute strategy: leave out the strategy and start one process for each device."
        )
