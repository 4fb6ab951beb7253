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
    """Leaves a `tf.function` that is being traced, and allows variables to be created that do not belong to it.

    TensorFlow would make sure that its own variables are created only once, by tracing everything again without them: a
    training step that creates its state in its first trace would take twice as long to start.
    """

    def made(next_creator: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
        return next_creator(**{**options, "experimental_enable_variable_lifting": False})

    with tf.init_scope(), tf.variable_creator_scope(made):
        yield


@tf.autograph.experimental.do_not_convert
def eagerly(call: Callable[[], Result], makes_variables: bool = False) -> Result:
    """Makes a call eagerly, even while a `tf.function` is traced or inside `with tf.Graph().as_default()`.

    Args:
        call: takes no arguments.
        makes_variables: whether it creates variables, which a `tf.function` being traced allows only for its own.

    Raises:
        RuntimeError: if eager execution is switched off for the whole process.
    """
    if tf.executing_eagerly():
        return call()
    with tf.init_scope():
        if tf.executing_eagerly() and not makes_variables:
            return call()
    # init_scope leaves neither a TensorFlow 1 graph nor a function's rules for variables; but a thread begins with
    # contexts of its own, which are eager.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(_checked, call).result()


def _checked(call: Callable[[], Result]) -> Result:
    if not tf.executing_eagerly():
        raise RuntimeError(
            "TensorFlow's eager execution is switched off, and Keras 3 and hvd_sparse need it: remove "
            "tf.compat.v1.disable_eager_execution() or tf.compat.v1.disable_v2_behavior()."
        )
    return call()
