"""The scripts and tests of Horovod that are run, how, and their own changes beside those made to all."""

from __future__ import annotations

import dataclasses

from tools.horovod_scripts.changes import Change, shorter

PHOTOGRAPHS, CONFIGURATION = "{photographs}", "{configuration}"  # filled in by the runner


@dataclasses.dataclass(frozen=True)
class Script:
    """An example: its path in Horovod's repository, its arguments, and its own changes.

    `modules` are further files that it imports; `companion` is a Python module with arguments that runs beside it on
    one rank.
    """

    path: str
    arguments: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    modules: tuple[str, ...] = ()
    companion: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Tests:
    """A test file: its path, its own changes, and options for pytest."""

    path: str
    changes: tuple[Change, ...] = ()


_ONE_ITERATION = ("--no-cuda", "--model", "MobileNet", "--batch-size", "2", "--num-batches-per-iter", "1")
_DATA_SERVICE = "examples/tensorflow2/tensorflow2_mnist_data_service"
_COMPUTE_WORKER = "horovod.tensorflow.data.compute_worker"

_BUILT = "Keras 3 builds model and optimizer without a step"
_FIRST_CALL = f"{_BUILT}; the first call of a `tf.function` with a tape has to exchange."
_WITHIN_RUN = f"{_BUILT}; gradients are exchanged in `hvd.elastic.run` only, where all ranks are there."

SCRIPTS = (
    Script("examples/keras/keras_mnist.py"),
    Script("examples/keras/keras_mnist_advanced.py", ("--epochs", "6")),
    Script(
        "examples/keras/keras_imagenet_resnet50.py",
        (
            *("--train-dir", f"{PHOTOGRAPHS}/train", "--val-dir", f"{PHOTOGRAPHS}/val", "--epochs", "1"),
            *("--batch-size", "2", "--val-batch-size", "2", "--warmup-epochs", "1"),
        ),
    ),
    Script("examples/tensorflow2/tensorflow2_mnist.py", (), (shorter(r"take\(10000 //", "take(60 //"),)),
    Script(
        "examples/tensorflow2/tensorflow2_keras_mnist.py",
        (),
        (shorter(r"steps_per_epoch=500", "steps_per_epoch=20"), shorter(r"epochs=24", "epochs=4")),
    ),
    Script(
        "examples/tensorflow2/tensorflow2_synthetic_benchmark.py",
        (*_ONE_ITERATION, "--num-iters", "2", "--num-warmup-batches", "1"),
    ),
    Script(
        "examples/tensorflow2/tensorflow2_keras_synthetic_benchmark.py",
        (*_ONE_ITERATION, "--num-iters", "2"),
    ),
    Script(
        f"{_DATA_SERVICE}.py",
        (CONFIGURATION,),
        (shorter(r"epochs=24", "epochs=4"),),
        (
            f"{_DATA_SERVICE}_train_fn_compute_side_dispatcher.py",
            f"{_DATA_SERVICE}_train_fn_training_side_dispatcher.py",
        ),
        (_COMPUTE_WORKER, CONFIGURATION),
    ),
    Script(
        "examples/elastic/tensorflow2/tensorflow2_mnist_elastic.py",
        (),
        (
            Change(
                r"^( *)for .*dataset\.take\(1\)\):\n *training_step\(images, labels, allreduce=False\)\n",
                r"\1mnist_model.build((None, 28, 28, 1))\n\1opt.build(mnist_model.trainable_variables)\n",
                _FIRST_CALL,
            ),
        ),
    ),
    Script(
        "examples/elastic/tensorflow2/tensorflow2_keras_mnist_elastic.py",
        (),
        (
            Change(
                r"^model\.fit\(dataset, steps_per_epoch=1, .*\)\n",
                "model.build((None, 28, 28, 1))\nopt.build(model.trainable_variables)\n",
                _WITHIN_RUN,
            ),
            Change(r"^ *# Re-initialize, .*\n *state\.model\.fit\(.*\)\n", "", _WITHIN_RUN),
            shorter(r"steps_per_epoch=500", "steps_per_epoch=20"),
            shorter(r"epochs=24-", "epochs=4-"),
        ),
    ),
    Script(
        "examples/elastic/tensorflow2/tensorflow2_synthetic_benchmark_elastic.py",
        (*_ONE_ITERATION, "--num-iters", "2", "--num-warmup-batches", "1"),
    ),
)

_PRIVATE = Change(r"\bhvd\.(?:util\.)?_executing_eagerly\(", "_executing_eagerly(", "A private name of Horovod's.")
_BASICS = Change(
    r"\bhvd\.mpi_ops\._basics",
    '__import__("horovod.tensorflow.mpi_ops", fromlist=["_basics"])._basics',
    "A private name of Horovod's.",
)
_INSIDE = "It inspects internals of Horovod's optimizer."
_NO_REF = Change(r"\b(var|v)\.ref\(\)", r"id(\1)", "Keras 3's variables have no `ref`.")

_OWN_OPTIMIZER = (  # defined by a test
    Change(r"super\(\).__init__\(name=name", "super().__init__(0.1, name=name", "Keras 3 requires a learning rate."),
    Change(
        r"def update_step\(self, gradient, variable\)",
        "def update_step(self, gradient, variable, learning_rate)",
        "Keras 3 passes the learning rate.",
    ),
)
TESTS = (
    Tests(
        "test/parallel/test_tensorflow2_keras.py",
        (
            *_OWN_OPTIMIZER,
            Change(
                r"^( *)grads_and_vars = (?:opt|hvd_optimizer)\._compute_gradients\(\s*(?:loss=)?loss, var_list=(\w+)\)",
                r"\1with tf.GradientTape() as tape:\n\1    value = loss()\n"
                r"\1grads_and_vars = list(zip(tape.gradient(value, \2), \2))",
                "Keras 3's optimizers compute no gradients.",
            ),
            Change(r",\s*experimental_aggregate_gradients=False", "", "Keras 3 has no such argument."),
            Change(r"^ *aggregation_counter = .*\n *assert aggregation_counter == .*\n", "", _INSIDE),
            _NO_REF,
        ),
    ),
    Tests("test/parallel/test_tensorflow2_keras_process_sets.py", _OWN_OPTIMIZER),
    Tests(
        "test/parallel/test_tensorflow.py",
        (
            _PRIVATE,
            _NO_REF,
            Change(r", fused=False", "", "Keras 3 has no such argument."),
            Change(
                r"^( *def test_(?:horovod_syncbn_cpu|model_parallel_model|partial_distributed_gradient_tape)\(.*\n)",
                r"\1        if not _executing_eagerly():\n            return\n",
                "Keras 3 does not run in graphs of TensorFlow 1, in which each test also runs: eager mode only.",
            ),
        ),
    ),
    Tests("test/parallel/test_tensorflow_process_sets.py", (_PRIVATE,)),
    Tests("test/parallel/test_tensorflow_process_sets_dynamic.py", (_BASICS,)),
    Tests("test/parallel/test_process_sets_static.py", (_BASICS,)),
    Tests("test/parallel/test_process_sets_multi_comm.py", (_BASICS,)),
    Tests("test/parallel/test_adasum_tensorflow.py"),
    Tests("test/parallel/test_xla.py"),
    Tests("test/parallel/test_xla_process_sets.py"),
    Tests("test/parallel/test_compute_worker.py"),
    Tests("test/parallel/test_keras.py"),
    Tests("test/parallel/test_tensorflow_keras.py"),
)
