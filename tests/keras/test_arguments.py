"""Horovod's arguments on one rank, each compared with what Horovod does; tests/parallel has those of several ranks."""

import inspect
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from horovod.tensorflow import ProcessSet, global_process_set

import hvd_sparse as hvd
from hvd_sparse.aggregators import AllReduce, Hierarchical
from hvd_sparse.compressors import BucketTopK

GRADIENTS = np.random.default_rng(1).integers(-8, 8, size=(12, 4)).astype("f4")


def sgd(**options):
    return keras.optimizers.SGD(1.0, **options)


def trained(optimizer, gradients=GRADIENTS, start=0.0):
    """The variable after the optimizer has applied gradients one after the other, and what `iterations` said then."""
    variable = keras.Variable(np.full(gradients.shape[1], start, "f4"), name="variable")
    counts = []
    for gradient in gradients:
        optimizer.apply_gradients(zip([tf.constant(gradient)], [variable], strict=True))
        counts.append(int(optimizer.iterations))
    return np.asarray(variable), counts


# ---- the names and their order ----


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
    assert optimizer.exchange.aggregator == hvd.recipes.dense("float16")
    assert optimizer.gradient_accumulation_steps == 2
    np.testing.assert_array_equal(trained(optimizer, GRADIENTS[:2])[0], -(GRADIENTS[0] + GRADIENTS[1]) / 2)
    with pytest.raises(TypeError, match="got 'op' by position and by name"):
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


def test_a_recipe_may_stand_where_it_used_to():
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
    from hvd_sparse import topology

    for wrap in (lambda **options: hvd.DistributedOptimizer(sgd(), **options), tape_with, hvd.GradientExchange):
        with pytest.raises(ValueError, match=f"op=hvd.{name} is not supported for gradients.*hvd.Average"):
            wrap(op=getattr(topology, name))


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
    with pytest.raises(ValueError, match="op=hvd.Sum is no mean"):
        hvd.DistributedOptimizer(sgd(), gradient_predivide_factor=2.0, op=hvd.Sum)
    for options in ({"compression": hvd.Compression.fp16}, {"aggregator": hvd.recipes.hitopk(0.1, "float16")}):
        with pytest.raises(ValueError, match="whose sums it would keep from overflowing.*bfloat16"):
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
    with pytest.raises(ValueError, match=f"Expected {next(iter(options))} to be a .*number"):
        tape_with(**options)


# ---- compression ----


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (None, hvd.recipes.dense("float16")),
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
        (hvd.recipes.sparcml(0.1, bits=4, as_published=True), "AsPublished"),
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
    with pytest.raises(ValueError, match=f"{part} has a code of its own.*leave out compression"):
        hvd.DistributedOptimizer(sgd(), compression=hvd.Compression.fp16, aggregator=recipe)
    with pytest.raises(ValueError, match=f"{part} has a code of its own.*leave out compression"):
        tape_with(compression=hvd.Compression.fp16, aggregator=recipe)


def test_two_different_wire_dtypes_are_refused():
    with pytest.raises(ValueError, match="was given wire_dtype='bfloat16', and compression asks for float16"):
        tape_with(compression=hvd.Compression.fp16, aggregator=hvd.recipes.topk(0.1, "bfloat16"))


def test_other_compressions_are_refused():
    with pytest.raises(ValueError, match="Expected hvd.Compression.none or hvd.Compression.fp16.*aggregator="):
        hvd.DistributedOptimizer(sgd(), compression="fp16")


# ---- backward_passes_per_step ----


@pytest.mark.parametrize("averaged", [False, True])
@pytest.mark.parametrize("passes", [1, 2, 3])
def test_gradients_of_several_passes_are_added_up(passes, averaged):
    optimizer = hvd.DistributedOptimizer(
        sgd(momentum=0.5), backward_passes_per_step=passes, average_aggregated_gradients=averaged
    )
    weights, counts = trained(optimizer)
    expected, velocity = np.zeros(4), np.zeros(4)
    for of_step in GRADIENTS.reshape(-1, passes, 4):
        velocity = 0.5 * velocity - of_step.sum(axis=0) / (passes if averaged else 1)
        expected += velocity
    np.testing.assert_allclose(weights, expected, rtol=1e-6)
    assert counts == list(range(1, 13))  # Horovod counts each pass
    assert optimizer.exchange.step == 12 // passes


def test_a_schedule_and_the_bias_correction_of_adam_count_passes():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([5, 9], [0.5, 0.25, 0.125])
    adam = keras.optimizers.Adam(schedule, beta_1=0.5, beta_2=0.75, epsilon=1e-3)
    weights, _ = trained(hvd.DistributedOptimizer(adam, backward_passes_per_step=2))
    expected, m, v = np.zeros(4), np.zeros(4), np.zeros(4)
    for iterations in range(1, 12, 2):  # as Horovod has counted when it applies the second pass of a step
        gradient = GRADIENTS[iterations - 1] + GRADIENTS[iterations]
        m, v = m + (gradient - m) * 0.5, v + (gradient**2 - v) * 0.25
        rate = schedule(iterations).numpy()
        alpha = rate * np.sqrt(1 - 0.75 ** (iterations + 1)) / (1 - 0.5 ** (iterations + 1))
        expected -= alpha * m / (np.sqrt(v) + 1e-3)
    np.testing.assert_allclose(weights, expected, rtol=1e-5)


def test_the_sum_is_clipped_and_weights_decay_once_a_step():
    optimizer = hvd.DistributedOptimizer(sgd(clipnorm=4.0, weight_decay=0.25), backward_passes_per_step=2)
    weights, _ = trained(optimizer, start=2.0)
    expected = np.full(4, 2.0)
    for of_step in GRADIENTS.reshape(-1, 2, 4):
        gradient = of_step.sum(axis=0)
        norm = np.linalg.norm(gradient)
        expected = 0.75 * expected - gradient * min(1.0, 4.0 / norm)
    np.testing.assert_allclose(weights, expected, rtol=1e-5)


@pytest.mark.parametrize("averaged", [False, True])
def test_what_is_kept_back_is_fed_back_once_a_step(averaged):
    optimizer = hvd.DistributedOptimizer(
        sgd(),
        aggregator=hvd.recipes.topk(0.25),
        backward_passes_per_step=2,
        average_aggregated_gradients=averaged,
    )
    weights, _ = trained(optimizer)
    expected, residual = np.zeros(4, "f4"), np.zeros(4, "f4")
    for of_step in GRADIENTS.reshape(-1, 2, 4):
        residual = residual + of_step.sum(axis=0) / (2 if averaged else 1)
        largest = np.argmax(np.abs(residual))
        expected[largest] -= residual[largest]
        residual[largest] = 0
    np.testing.assert_array_equal(weights, expected)
    np.testing.assert_array_equal(optimizer.exchange.kept().residuals["variable"], residual)


def test_several_passes_work_in_fit_under_a_scaled_loss():
    keras.config.set_dtype_policy("mixed_float16")
    x, y = np.arange(24, dtype="f4").reshape(12, 2) / 64, np.ones((12, 1), "f4")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros", use_bias=False)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.25), backward_passes_per_step=3)
    model.compile(optimizer, "mse")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    model.fit(x, y, batch_size=2, epochs=1, shuffle=False, verbose=0)
    weights = np.zeros((2, 1))
    for of_step in np.arange(12).reshape(2, 6):
        batches = [of_step[begin : begin + 2] for begin in (0, 2, 4)]
        weights = weights - 0.25 * sum(x[each].T @ (x[each] @ weights - y[each]) for each in batches)
    np.testing.assert_allclose(model.layers[0].kernel, weights, rtol=2e-2)
    assert int(optimizer.iterations) == 6 and optimizer.exchange.step == 2


def test_rows_of_embeddings_accumulate():
    table = keras.Variable(np.zeros((3, 2), "f4"), name="table")
    optimizer = hvd.DistributedOptimizer(sgd(), backward_passes_per_step=2)
    for rows in ([2, 0], [2, 2]):
        slices = tf.IndexedSlices(tf.ones([2, 2]), tf.constant(rows), tf.constant([3, 2]))
        optimizer.apply([slices], [table])
    np.testing.assert_array_equal(table, [[-1, -1], [0, 0], [-3, -3]])


def test_both_ways_to_accumulate_are_refused():
    with pytest.raises(ValueError, match="both ask for accumulation.*adds gradients up.*averages them"):
        hvd.DistributedOptimizer(sgd(gradient_accumulation_steps=2), backward_passes_per_step=4)


@pytest.mark.parametrize("passes", [0, -1, 2.0, "2", None, True])
def test_passes_are_a_number_above_zero(passes):
    with pytest.raises(ValueError, match="Expected backward_passes_per_step to be a whole number, at least 1"):
        hvd.DistributedOptimizer(sgd(), backward_passes_per_step=passes)


# ---- process_set ----


@pytest.mark.parametrize("process_set", [None, global_process_set])
def test_the_set_of_all_ranks_is_the_default(process_set):
    optimizer = hvd.DistributedOptimizer(sgd(), aggregator=hvd.recipes.hitopk(0.5), process_set=process_set)
    trained(optimizer)
    assert optimizer.exchange.kept().step == 12


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
    with pytest.raises(ValueError, match="(Hierarchical|Auto), which exchanges inside the nodes.*recipe of one level"):
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
    assert len(optimizer.exchange.kept().shapes) == (2 if local is None else 1)


def test_local_layers_have_to_be_layers():
    for partial in (hvd.PartialDistributedOptimizer, hvd.PartialDistributedGradientTape):
        wrapped = sgd() if partial is hvd.PartialDistributedOptimizer else tf.GradientTape()
        with pytest.raises(ValueError, match="Expected local layers to be Keras layers, got str"):
            partial(wrapped, local_layers=["dense"])


# ---- compile, files, configs ----


def model_with(optimizer, **options):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", **options)
    return model


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


def saved(tmp_path, **options):
    model = model_with(hvd.DistributedOptimizer(sgd(momentum=0.5), **options))
    model.fit(np.ones((4, 2)), np.ones((4, 1)), batch_size=2, verbose=0)
    model.save(tmp_path / "model.keras")
    return model, tmp_path / "model.keras"


def test_horovods_arguments_of_load_model_are_taken(tmp_path):
    _, path = saved(tmp_path)
    loaded = hvd.load_model(path, None, None, hvd.Compression.fp16, False)
    assert loaded.optimizer.exchange.aggregator == hvd.recipes.dense("float16")
    with pytest.raises(ValueError, match="legacy_opts=True.*Keras 3 does not have"):
        hvd.load_model(path, legacy_opts=True)
    with pytest.raises(TypeError, match="Unknown argument 'densty'"):
        hvd.load_model(path, densty=0.1)


def test_the_passes_of_a_saved_model_are_added_up_where_that_is_said_again(tmp_path):
    model, path = saved(tmp_path, backward_passes_per_step=2)
    loaded = hvd.load_model(path, backward_passes_per_step=2)
    assert int(loaded.optimizer.iterations) == int(model.optimizer.iterations) == 2
    for each in (model, loaded):
        each.fit(np.ones((4, 2)), np.ones((4, 1)), batch_size=2, verbose=0)
    for ours, theirs in zip(model.variables, loaded.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    with pytest.warns(UserWarning, match="averaged, as Keras does.*backward_passes_per_step=2"):
        hvd.load_model(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        hvd.load_model(path, backward_passes_per_step=2, average_aggregated_gradients=True)
    with pytest.raises(ValueError, match="is not what the optimizer .* was used with.*gradient_accumulation_steps=2"):
        hvd.load_model(path, backward_passes_per_step=3)


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
    """What `process_set` refuses and `compression` replaces goes through any nesting."""
    nested = Hierarchical(AllReduce())
    optimizer = hvd.DistributedOptimizer(sgd(), compression=hvd.Compression.fp16, aggregator=nested)
    assert optimizer.exchange.aggregator == Hierarchical(AllReduce("float16"))
    assert nested == Hierarchical(AllReduce())
