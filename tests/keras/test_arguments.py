"""Horovod's arguments on one rank, compared with Horovod's behaviour; tests/parallel has tests on several ranks."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
from horovod.tensorflow import ProcessSet, global_process_set

import hvd_sparse as hvd
from hvd_sparse.aggregators import AllReduce, Hierarchical
from hvd_sparse.compression.selectors import BucketTopK
from tests.keras.training import GRADIENTS, model_with, saved, sgd, trained

# ---- names and their order ----


@pytest.mark.parametrize(
    ("ours", "names"),
    [
        (
            hvd.DistributedOptimizer,
            "optimizer name device_dense device_sparse compression sparse_as_dense gradient_predivide_factor op "
            "backward_passes_per_step average_aggregated_gradients num_groups groups process_set scale_local_gradients",
        ),
        (
            hvd.PartialDistributedOptimizer,
            "optimizer name device_dense device_sparse compression sparse_as_dense gradient_predivide_factor op groups "
            "process_set local_layers scale_local_gradients",
        ),
        (
            hvd.DistributedGradientTape,
            "gradtape device_dense device_sparse compression sparse_as_dense op gradient_predivide_factor num_groups "
            "groups process_set scale_local_gradients",
        ),
        (
            hvd.PartialDistributedGradientTape,
            "gradtape device_dense device_sparse compression sparse_as_dense op gradient_predivide_factor num_groups "
            "groups process_set local_layers scale_local_gradients",
        ),
        (hvd.load_model, "filepath custom_optimizers custom_objects compression legacy_opts"),
    ],
)
def test_arguments_stand_in_horovods_order(ours, names):
    kinds = inspect.signature(ours).parameters.values()
    assert [each.name for each in kinds if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD] == names.split()


def test_the_order_of_horovod_tensorflow_is_known_by_its_bool():
    optimizer = hvd.DistributedOptimizer(
        sgd(),
        None,
        False,
        "",
        "",
        hvd.Compression.fp16,
        False,
        2,
        hvd.Sum,
        1.0,
        True,
        0,
        None,
        global_process_set,
        True,
    )
    assert optimizer.exchange.aggregator == hvd.recipes.mean("float16")
    assert optimizer.gradient_accumulation_steps == 2
    np.testing.assert_array_equal(trained(optimizer, GRADIENTS[:2])[0], -(GRADIENTS[0] + GRADIENTS[1]) / 2)
    with pytest.raises(TypeError, match="got multiple values for argument 'op'"):
        hvd.DistributedOptimizer(sgd(), None, False, "", "", hvd.Compression.none, False, 1, hvd.Sum, op=hvd.Sum)


def test_horovods_defaults_are_taken():
    common = {"device_dense": "", "device_sparse": "", "compression": hvd.Compression.none, "sparse_as_dense": False}
    common |= {"op": hvd.Average, "gradient_predivide_factor": 1.0, "num_groups": 0, "groups": None}
    common |= {"process_set": global_process_set, "scale_local_gradients": True}
    passes = {"backward_passes_per_step": 1, "average_aggregated_gradients": False}
    optimizer = hvd.DistributedOptimizer(optimizer=sgd(), name=None, use_locking=False, **common, **passes)
    np.testing.assert_array_equal(trained(optimizer)[0], -GRADIENTS.sum(axis=0))
    variable = tf.Variable([2.0])
    with tf.GradientTape() as tape:
        loss = variable * variable
    tape = hvd.DistributedGradientTape(gradtape=tape, **common)
    np.testing.assert_array_equal(tape.gradient(loss, [variable]), [[4.0]])


def test_a_recipe_may_stand_in_the_place_of_a_device():
    recipe = hvd.recipes.topk(0.5)
    assert hvd.DistributedOptimizer(sgd(), "name", recipe).exchange.aggregator is recipe
    for wrong in (hvd.GradientExchange(), 0.01):
        with pytest.raises(TypeError, match="Expected the name of a device.*aggregator=hvd.recipes"):
            hvd.DistributedOptimizer(sgd(), "name", wrong)


@pytest.mark.parametrize("name", ["device_dense", "device_sparse"])
def test_a_device_is_refused(name):
    for wrap in (lambda **options: hvd.DistributedOptimizer(sgd(), **options), tape_with):
        with pytest.raises(ValueError, match=f"{name}='/gpu:0' is not supported.*Leave it out"):
            wrap(**{name: "/gpu:0"})


def tape_with(**options):
    return hvd.DistributedGradientTape(tf.GradientTape(), **options)


# ---- op, gradient_predivide_factor, groups ----


@pytest.mark.parametrize("name", ["Adasum", "Min", "Max", "Product"])
def test_other_operations_are_refused_by_name(name):
    for wrap in (lambda **options: hvd.DistributedOptimizer(sgd(), **options), tape_with, hvd.GradientExchange):
        with pytest.raises(ValueError, match=f"op=hvd.{name} is not supported for gradients.*hvd.Average"):
            wrap(op=getattr(hvd, name))


@pytest.mark.parametrize("op", [True, "sum", 17, 1.0])
def test_what_is_no_operation_is_refused(op):
    with pytest.raises(ValueError, match="op=.* is not supported"):
        hvd.DistributedOptimizer(sgd(), op=op)


@pytest.mark.parametrize("recipe", [None, hvd.recipes.topk(0.5), hvd.recipes.sparcml(0.5)])
def test_the_sum_over_one_rank_is_its_gradient(recipe):
    results = [trained(hvd.DistributedOptimizer(sgd(), aggregator=recipe, op=op))[0] for op in (hvd.Sum, hvd.Average)]
    np.testing.assert_array_equal(*results)


def test_a_predivide_factor_makes_no_difference_to_a_mean():
    recipe = hvd.recipes.topk(0.5, wire_dtype="bfloat16")
    optimizer = hvd.DistributedOptimizer(sgd(), gradient_predivide_factor=2.0, aggregator=recipe)
    np.testing.assert_array_equal(trained(optimizer)[0], trained(hvd.DistributedOptimizer(sgd(), aggregator=recipe))[0])
    tape_with(gradient_predivide_factor=3)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf"), "2", None, True + 1j])
def test_a_predivide_factor_is_a_number_above_zero(factor):
    with pytest.raises(ValueError, match="Expected a gradient_predivide_factor above 0"):
        tape_with(gradient_predivide_factor=factor)


def test_a_predivide_factor_is_refused_where_it_cannot_be_honoured():
    with pytest.raises(ValueError, match="op=hvd.Sum takes no mean"):
        hvd.DistributedOptimizer(sgd(), gradient_predivide_factor=2.0, op=hvd.Sum)
    for options in ({"compression": hvd.Compression.fp16}, {"aggregator": hvd.recipes.hitopk(0.1, "float16")}):
        with pytest.raises(ValueError, match="whose sums it should keep from overflowing.*bfloat16"):
            hvd.DistributedOptimizer(sgd(), gradient_predivide_factor=2.0, **options)


@pytest.mark.parametrize("groups", [3, [[]], [[keras.Variable([1.0])], [tf.Variable([1.0])]]])
def test_groups_make_no_difference(groups):
    optimizer = hvd.DistributedOptimizer(sgd(), groups=groups, num_groups=2)
    np.testing.assert_array_equal(trained(optimizer)[0], -GRADIENTS.sum(axis=0))
    tape_with(groups=groups, num_groups=2)


@pytest.mark.parametrize(
    "options",
    [{"groups": each} for each in (0, -1, True, 1.5, "two", [1], [["name"]])]
    + [{"num_groups": each} for each in (-1, 0.5, None, True)],
)
def test_what_are_no_groups_is_refused(options):
    with pytest.raises(ValueError, match=f"Expected {next(iter(options))} to be an integer"):
        tape_with(**options)


# ---- compression ----


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (None, hvd.recipes.mean("float16")),
        (hvd.recipes.dense(), hvd.recipes.dense("float16")),
        (hvd.recipes.torus2d(), hvd.recipes.torus2d("float16")),
        (hvd.recipes.topk(0.1), hvd.recipes.topk(0.1, "float16")),
        (hvd.recipes.hitopk(0.1, samplings=9), hvd.recipes.hitopk(0.1, "float16", samplings=9)),
        (hvd.recipes.mstopk(0.1, "float16"), hvd.recipes.mstopk(0.1, "float16")),
        (hvd.recipes.auto(0.1, budget=1.0), hvd.recipes.auto(0.1, wire_dtype="float16", budget=1.0)),
        (
            hvd.recipes.schedule([(0, hvd.recipes.dense()), (2, hvd.recipes.hitopk(0.1))]),
            hvd.recipes.schedule([(0, hvd.recipes.dense("float16")), (2, hvd.recipes.hitopk(0.1, "float16"))]),
        ),
        (
            hvd.aggregators.Compressed(hvd.error_feedback.ErrorFeedback(BucketTopK(4, 64))),
            hvd.aggregators.Compressed(hvd.error_feedback.ErrorFeedback(BucketTopK(4, 64, "float16"))),
        ),
    ],
)
def test_float16_compression_is_a_recipes_wire_dtype(recipe, expected):
    optimizer = hvd.DistributedOptimizer(sgd(), compression=hvd.Compression.fp16, aggregator=recipe)
    assert optimizer.exchange.aggregator == expected


@pytest.mark.parametrize(
    ("recipe", "part"),
    [
        (hvd.recipes.sparcml(0.1), "SparseAllReduce"),
        (hvd.recipes.sparcml(0.1, bits=4, as_published=True), "SparCMLAlgorithm1"),
        (hvd.recipes.schedule([(0, hvd.recipes.dense()), (2, hvd.recipes.sparcml(0.1))]), "SparseAllReduce"),
        (
            hvd.aggregators.Compressed(
                hvd.compressors.Quantized(hvd.compressors.TopK(0.1), hvd.quantizers.QSGD(4), keeps_error=False)
            ),
            "Quantized",
        ),
    ],
)
def test_float16_compression_is_refused_beside_a_code_of_its_own(recipe, part):
    with pytest.raises(ValueError, match=f"{part} has its own encoding.*leave out compression"):
        hvd.DistributedOptimizer(sgd(), compression=hvd.Compression.fp16, aggregator=recipe)
    with pytest.raises(ValueError, match=f"{part} has its own encoding.*leave out compression"):
        tape_with(compression=hvd.Compression.fp16, aggregator=recipe)


def test_two_different_wire_dtypes_are_refused():
    with pytest.raises(ValueError, match="has wire_dtype='bfloat16', and compression asks for float16"):
        tape_with(compression=hvd.Compression.fp16, aggregator=hvd.recipes.topk(0.1, "bfloat16"))


def test_other_compressions_are_refused():
    with pytest.raises(ValueError, match="Expected hvd.Compression.none or hvd.Compression.fp16.*aggregator="):
        hvd.DistributedOptimizer(sgd(), compression="fp16")


# ---- process_set ----


@pytest.mark.parametrize("process_set", [None, global_process_set])
def test_the_set_of_all_ranks_is_the_default(process_set):
    optimizer = hvd.DistributedOptimizer(sgd(), aggregator=hvd.recipes.hitopk(0.5), process_set=process_set)
    trained(optimizer)
    assert optimizer.exchange.residual_sum().step == 12


def test_only_process_sets_are_taken():
    with pytest.raises(TypeError, match="Expected process_set to be an hvd.ProcessSet, got list"):
        hvd.DistributedOptimizer(sgd(), process_set=[0])


@pytest.mark.parametrize(
    "recipe",
    [
        hvd.recipes.torus2d(),
        hvd.recipes.hitopk(0.1),
        hvd.recipes.auto(0.1),
        hvd.recipes.schedule([(0, hvd.recipes.dense()), (1, hvd.recipes.hitopk(0.1))]),
    ],
)
def test_recipes_that_exchange_by_nodes_are_refused_in_a_process_set(recipe):
    with pytest.raises(ValueError, match="(Hierarchical|Auto), which exchanges within and across.*single-level recipe"):
        tape_with(process_set=ProcessSet([0]), aggregator=recipe).gradient(tf.constant(1.0), [tf.Variable(1.0)])


def test_a_process_set_has_to_be_known_to_horovod():
    optimizer = hvd.DistributedOptimizer(sgd(), process_set=ProcessSet([0]))
    with pytest.raises(ValueError, match=r"not known to Horovod.*hvd.init\(process_sets="):
        trained(optimizer)


# ---- local layers ----


@pytest.mark.parametrize("local", [None, "one", "list"])
def test_partial_forms_leave_layers_local(local):
    layers = [keras.layers.Dense(1, use_bias=False, kernel_initializer="ones") for _ in range(2)]
    model = keras.Sequential([keras.Input((1,)), *layers])
    local_layers = {None: None, "one": layers[0], "list": [layers[0]]}[local]
    optimizer = hvd.PartialDistributedOptimizer(sgd(), local_layers=local_layers, aggregator=hvd.recipes.topk(1.0))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.constant([[2.0]])))
    tape = hvd.PartialDistributedGradientTape(tape, local_layers=local_layers)
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    np.testing.assert_array_equal([float(layer.kernel[0, 0]) for layer in layers], [-1.0, -1.0])
    assert len(optimizer.exchange.residual_sum().shapes) == (2 if local is None else 1)


def test_local_layers_have_to_be_layers():
    for partial in (hvd.PartialDistributedOptimizer, hvd.PartialDistributedGradientTape):
        wrapped = sgd() if partial is hvd.PartialDistributedOptimizer else tf.GradientTape()
        with pytest.raises(ValueError, match="Expected local layers to be Keras layers, got str"):
            partial(wrapped, local_layers=["dense"])


# ---- compile, files, configs ----


def test_arguments_of_compile_that_keras_3_dropped_are_named_in_one_warning():
    gone = {"experimental_run_tf_function": False, "sample_weight_mode": None, "cloning": None}
    with pytest.warns(UserWarning) as told:
        model = model_with(hvd.DistributedOptimizer(sgd()), **gone, weighted_metrics=["mae"], steps_per_execution=2)
    assert len(told) == 1
    assert all(f"{name}={value!r}" in str(told[0].message) for name, value in gone.items())
    model.fit(np.ones((4, 2)), np.ones((4, 1)), batch_size=1, verbose=0)


@pytest.mark.parametrize(
    ("distributed", "options"),
    [
        (False, {"experimental_run_tf_function": False}),
        (True, {"sample_weight_mode": "temporal"}),
        (True, {"target_tensors": [1]}),
        (True, {"los": "mse"}),
    ],
)
def test_other_arguments_are_left_to_keras(distributed, options):
    optimizer = hvd.DistributedOptimizer(sgd()) if distributed else sgd()
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{next(iter(options))}'"):
        model_with(optimizer, **options)


def test_horovods_arguments_of_load_model_are_taken(tmp_path):
    _, path = saved(tmp_path)
    loaded = hvd.load_model(path, None, None, hvd.Compression.fp16, False)
    assert loaded.optimizer.exchange.aggregator == hvd.recipes.mean("float16")
    with pytest.raises(ValueError, match="legacy_opts=True.*Keras 3 does not have"):
        hvd.load_model(path, legacy_opts=True)
    with pytest.raises(TypeError, match="Unknown argument 'densty'"):
        hvd.load_model(path, densty=0.1)


def test_an_optimizer_from_the_config_of_a_distributed_one_is_distributed_alike():
    recipe = hvd.recipes.topk(0.25)
    optimizer = hvd.DistributedOptimizer(sgd(momentum=0.5), aggregator=recipe, backward_passes_per_step=2)
    other = optimizer.from_config(optimizer.get_config())
    assert other is not optimizer and other.exchange is not optimizer.exchange
    np.testing.assert_array_equal(trained(optimizer)[0], trained(other)[0])
    assert other.exchange.aggregator is recipe and other.exchange.step == 6


def test_a_rate_times_the_number_of_ranks_is_taken():
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5 * hvd.size()))
    np.testing.assert_array_equal(trained(optimizer)[0], -0.5 * GRADIENTS.sum(axis=0))


def test_hierarchical_recipes_are_known_by_their_parts():
    """What `process_set` refuses and `compression` replaces is found at any level of nesting."""
    nested = Hierarchical(AllReduce())
    optimizer = hvd.DistributedOptimizer(sgd(), compression=hvd.Compression.fp16, aggregator=nested)
    assert optimizer.exchange.aggregator == Hierarchical(AllReduce("float16"))
    assert nested == Hierarchical(AllReduce())


def test_an_exchange_takes_no_optimizer_itself():
    with pytest.raises(TypeError, match=r"got SGD: use hvd.DistributedOptimizer\(optimizer, aggregator=...\)"):
        hvd.GradientExchange(hvd.recipes.updates(hvd.recipes.hitopk(0.1)), optimizer=keras.optimizers.SGD(0.1))
