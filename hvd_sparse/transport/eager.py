"""Calls that must run at once, whatever TensorFlow is tracing around them."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import tensorflow as tf

Result = TypeVar("Result")


@contextlib.contextmanager
def making_variables() -> Iterator[None]:
    """Leaves a `tf.function` that is traced, and lets variables be made that are none of its own.

    Of its own ones it would make sure that they are made once, and trace all anew without them: a training step that
    makes its state in its first trace takes twice as long to start.
    """

    def made(next_creator: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
        return next_creator(**{**options, "experimental_enable_variable_lifting": False})

    with tf.init_scope(), tf.variable_creator_scope(made):
        yield


@tf.autograph.experimental.do_not_convert
def eagerly(call: Callable[[], Result], makes_variables: bool = False) -> Result:
    """Makes a call eagerly, also while a `tf.function` is traced and inside `with tf.Graph().as_default()`.

    Args:
        call: gets no arguments.
        makes_variables: whether it does, which a `tf.function` that is traced allows for none but its own.

    Raises:
        RuntimeError: where eager execution is switched off for the whole process.
    """
    if tf.executing_eagerly():
        return call()
    with tf.init_scope():
        if tf.executing_eagerly() and not makes_variables:
            return call()
    # init_scope does not leave a graph of TensorFlow 1, nor what a function says of variables; but a thread begins
    # with contexts of its own, which are eager.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(_checked, call).result()


def _checked(call: Callable[[], Result]) -> Result:
    if not tf.executing_eagerly():
        raise RuntimeError(
            "TensorFlow's eager execution is switched off, and Keras 3 and hvd_sparse need it: take out "
            "tf.compat.v1.disable_eager_execution() or tf.compat.v1.disable_v2_behavior()."
        )
    return call()
