"""LARS and LAMB compared with NumPy, and the effects of their arguments."""

from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

import lars
from lars.layerwise import BIAS_AND_NORMALISATION
from tests.lars import layers, reference
from tests.lars.members import MEMBERS, stepper

BOTH = [lars.LARS, lars.LAMB]


@pytest.fixture(params=list(MEMBERS))
def member(request):
    return MEMBERS[request.param]


def close(variables, expected):
    """Compares to 1e-6 of the layer's largest weight."""
    for variable, wanted in zip(variables, expected, strict=True):
        np.testing.assert_allclose(variable.numpy(), wanted, rtol=0, atol=1e-6 * max(1e-30, np.abs(wanted).max()))


@pytest.mark.parametrize(
    "model",
    [name if name == "transformer" else pytest.param(name, marks=pytest.mark.thorough) for name in layers.MODELS],
)
def test_a_hundred_steps_agree_with_numpy(member, model):
    variables = layers.variables_of(model)
    adapted = [layers.is_adapted(variable.path) for variable in variables]
    optimizer = member.make(learning_rate=0.01, parallel=False, **member.settings)
    expected = member.reference(layers.weights_of(model), adapted, **member.settings)
    # A power of two is exact in float32, so that both get the same rate.
    optimizer.learning_rate = rate = 2.0**-6
    step = stepper(optimizer, variables)
    for number in range(100):
        gradients = layers.gradients_of(model, number)
        step([tf.constant(gradient) for gradient in gradients])
        expected.step(gradients, rate)
    for before, after in zip(layers.weights_of(model), expected.weights, strict=True):
        assert np.abs(after - before).max() > 1e-3 * np.abs(before).max()
    close(variables, expected.weights)


class Piece(NamedTuple):
    """A piece in the form that `lars.pieces` expects."""

    variable: Any
    weight: tf.Tensor
    gradient: tf.Tensor
    slots: dict[str, tf.Tensor]


def halves(arrays):
    """The positions of the pieces, as (array number, slice): first all last quarters, then all that precede them."""
    middles = [(3 * array.size + 1) // 4 for array in arrays]
    return [
        *((number, slice(middle, None)) for number, middle in enumerate(middles)),
        *((number, slice(middle)) for number, middle in enumerate(middles)),
    ]


def test_steps_on_pieces_are_those_on_variables(member):
    """For all owners and orders of pieces: only sums over pieces are exchanged."""
    variables = layers.variables_of("transformer")
    plain, cut = (member.make(learning_rate=0.01, parallel=False, **member.settings) for _ in range(2))
    step = stepper(plain, variables)
    cut.build_without_slots(variables)
    assert cut.runs_on_shards and len(cut.variables) == 2
    weights = [weight.flatten() for weight in layers.weights_of("transformer")]
    names = [name for name in ("momentums", "first_moments", "second_moments") if hasattr(plain, name)]
    held = [{name: np.zeros_like(weight) for name in names} for weight in weights]
    places = halves(weights)
    for number in range(3):
        gradients = layers.gradients_of("transformer", number)
        pieces = [
            Piece(
                variables[each],
                tf.constant(weights[each][here]),
                tf.constant(gradients[each].ravel()[here]),
                {name: tf.constant(slot[here]) for name, slot in held[each].items()},
            )
            for each, here in places
        ]
        own, begun = cut.shard_sums(pieces)
        sums = tf.tile(tf.add_n(tf.split(own, 2)), [2, 1])
        moved = cut.shard_step(pieces, begun, sums, cut.learning_rate)
        for (each, here), (lowered, new) in zip(places, moved, strict=True):
            weights[each][here] -= lowered
            for name, value in new.items():
                held[each][name][here] = value
        step([tf.constant(gradient) for gradient in gradients])
        cut.iterations.assign_add(1)
    close(variables, [weight.reshape(variable.shape) for weight, variable in zip(weights, variables, strict=True)])


def test_eager_and_traced_steps_are_the_same(member):
    results = []
    for traced in (False, True):
        variables = layers.variables_of("transformer")
        optimizer = member.make(parallel=False, **member.settings)
        step = stepper(optimizer, variables, traced)
        for number in range(3):
            step([tf.constant(gradient) for gradient in layers.gradients_of("transformer", number)])
        results.append([variable.numpy() for variable in [*variables, *optimizer.variables]])
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("zero", ["weight", "gradient", "both"])
def test_a_zero_norm_gives_ratio_one(member, zero):
    weight = np.zeros(3, "f4") if zero != "gradient" else np.array([1, 2, 2], "f4")
    gradient = np.zeros(3, "f4") if zero != "weight" else np.array([1, -2, 2], "f4")
    variable = layers.variable("dense/kernel", weight)
    optimizer = member.make(learning_rate=0.5, parallel=False, weight_decay=0.25)
    expected = member.reference([weight], [True], weight_decay=0.25)
    for _ in range(2):
        optimizer.apply([tf.constant(gradient)], [variable])
        expected.step([gradient], 0.5)
    assert np.isfinite(variable).all()
    close([variable], expected.weights)


def test_lars_of_a_zero_gradient_decays_by_the_rate_alone():
    """The formula would give trust_coefficient |w| / (weight_decay |w|); with a zero norm the ratio is 1."""
    variable = layers.variable("dense/kernel", np.array([1, 2, 2], "f4"))
    lars.LARS(0.5, momentum=0.0, weight_decay=0.25).apply([tf.zeros([3])], [variable])
    np.testing.assert_array_equal(variable, np.array([1, 2, 2], "f4") * (1 - 0.5 * 0.25))


@pytest.mark.parametrize("make", BOTH)
def test_an_empty_variable_and_a_scalar(make):
    variables = [layers.variable("a/kernel", np.zeros([0, 3], "f4")), layers.variable("b/kernel", np.float32(2))]
    make(0.5).apply([tf.zeros([0, 3]), tf.constant(1.0)], variables)
    assert np.isfinite(variables[1]) and variables[1] != 2.0


# ---- exclude ----


@pytest.mark.parametrize("path", ["block/bias", "norm/gamma", "norm/beta", "rms/scale", "bias"])
def test_by_default_biases_and_normalisation_are_left_out(path):
    variable = layers.variable(path, np.array([3, 4], "f4"))
    lars.LARS(0.5, momentum=0.0, weight_decay=0.25).apply([tf.constant([1.0, -1.0])], [variable])
    np.testing.assert_array_equal(variable, [2.5, 4.5])


@pytest.mark.parametrize("path", ["bias_free/kernel", "beta/kernel", "dense/kernel", "embedding/embeddings"])
def test_by_default_others_are_not(path):
    variable = layers.variable(path, np.array([3, 4], "f4"))
    lars.LARS(0.5, momentum=0.0, weight_decay=0.0).apply([tf.constant([1.0, -1.0])], [variable])
    np.testing.assert_allclose(variable, np.array([3, 4]) - 0.5 * 0.001 * 5 / 2**0.5 * np.array([1, -1]), rtol=1e-6)


def keras_layers():
    """Layers that have a bias or normalise, with a built input."""
    L = keras.layers
    image, sequence = keras.Input((8, 8, 4)), keras.Input((5, 4))
    convolved = L.GroupNormalization(2)(L.BatchNormalization()(L.Conv2D(4, 3)(image)))
    attended = L.RMSNormalization()(L.LayerNormalization()(L.MultiHeadAttention(2, 2)(sequence, sequence)))
    return keras.Model([image, sequence], [L.Dense(2)(convolved), L.LSTM(3)(attended)])


def test_the_default_fits_the_names_of_keras():
    model = keras_layers()
    optimizer = lars.LARS()
    adapted = {variable.path for variable in model.trainable_variables if not optimizer._is_excluded(variable)}
    assert adapted == {variable.path for variable in model.trainable_variables if "kernel" in variable.path}
    assert len(adapted) == 8 and len(model.trainable_variables) > 20


def test_nothing_and_patterns_of_ones_own_are_left_out(member):
    weights = {"a/bias": np.array([3, 4], "f4"), "b/kernel": np.array([1, 1], "f4")}
    for exclude, adapted in (([], [True, True]), (["kernel"], [True, False]), (["^a/", "^b/"], [False, False])):
        variables = [layers.variable(path, weight) for path, weight in weights.items()]
        expected = member.reference(list(weights.values()), adapted, weight_decay=0.25)
        optimizer = member.make(learning_rate=0.5, weight_decay=0.25, exclude=exclude)
        gradients = [np.array([1, -2], "f4"), np.array([2, 1], "f4")]
        optimizer.apply([tf.constant(gradient) for gradient in gradients], variables)
        expected.step(gradients, 0.5)
        close(variables, expected.weights)


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize("exclude", ["bias", None, [1], [b"bias"]])
def test_patterns_come_in_a_list(make, exclude):
    with pytest.raises(ValueError, match="Expected exclude to be a list of patterns"):
        make(exclude=exclude)


@pytest.mark.parametrize("make", BOTH)
def test_a_pattern_that_is_none_is_refused(make):
    with pytest.raises(ValueError, match=r"The pattern '\(' in exclude is not a regular expression"):
        make(exclude=["("])


@pytest.mark.parametrize("make", BOTH)
def test_keras_own_list_for_decay_is_refused(make):
    with pytest.raises(ValueError, match="by its argument exclude"):
        make().exclude_from_weight_decay(var_names=["bias"])


def test_weight_decay_is_ours_alone(member):
    """Keras would first subtract learning_rate * weight_decay * w."""
    weight, gradient = np.array([3, 4], "f4"), np.array([1, -1], "f4")
    variable = layers.variable("dense/kernel", weight)
    optimizer = member.make(learning_rate=0.5, weight_decay=0.25)
    assert optimizer.weight_decay == 0.25
    optimizer.apply([tf.constant(gradient)], [variable])
    expected = member.reference([weight], [True], weight_decay=0.25)
    expected.step([gradient], 0.5)
    close([variable], expected.weights)


@pytest.mark.parametrize(
    ("make", "name", "value", "message"),
    [
        (lars.LARS, "weight_decay", -1.0, "weight_decay to be a number of at least 0, got -1.0"),
        (lars.LARS, "weight_decay", None, "weight_decay to be a number of at least 0, got None"),
        (lars.LARS, "trust_coefficient", "0.1", "trust_coefficient to be a number"),
        (lars.LARS, "epsilon", float("nan"), "epsilon to be a number"),
        (lars.LARS, "momentum", 1.5, "momentum"),
        (lars.LAMB, "beta_1", 1.0, r"beta_1 in \[0, 1\), got 1.0"),
        (lars.LAMB, "beta_2", -0.5, "beta_2 to be a number of at least 0"),
        (lars.LAMB, "epsilon", -1e-6, "epsilon to be a number"),
    ],
)
def test_numbers_out_of_range_are_refused(make, name, value, message):
    with pytest.raises(ValueError, match=message):
        make(**{name: value})


@pytest.mark.parametrize("make", BOTH)
def test_parallel_is_a_truth_or_a_communicator(make):
    with pytest.raises(TypeError, match="Expected parallel to be True, False or a communicator"):
        make(parallel=4)


# ---- gradients ----


def test_rows_are_made_dense(member):
    """A row that occurs twice counts twice, and one that does not occur decays like the others."""
    values, rows = np.array([[1, 2], [3, 4], [5, 6]], "f4"), np.array([2, 0, 2])
    dense = np.zeros((4, 2), "f4")
    np.add.at(dense, rows, values)
    weight = np.arange(1, 9, dtype="f4").reshape(4, 2)
    slices = tf.IndexedSlices(tf.constant(values), tf.constant(rows))
    results = []
    for gradient in (slices, tf.constant(dense)):
        variable = layers.variable("embedding/embeddings", weight)
        optimizer = member.make(learning_rate=0.5, weight_decay=0.25)
        for _ in range(2):
            optimizer.apply([gradient], [variable])
        results.append(variable.numpy())
    np.testing.assert_array_equal(*results)
    assert (results[0] != weight).all()


@pytest.mark.parametrize("shape", [[3], [4]])
def test_gradients_whose_shape_is_known_when_they_run(member, shape):
    """The right shape takes the same step; a wrong one is refused, and weight and slots stay as they were."""
    variables = [layers.variable("a/kernel", np.arange(1, 4, dtype="f4")) for _ in range(2)]
    optimizers = [member.make(learning_rate=0.5, weight_decay=0.25) for _ in variables]
    for optimizer, variable in zip(optimizers, variables, strict=True):
        optimizer.build([variable])
    step = tf.function(lambda gradient: optimizers[0].apply([gradient], [variables[0]]), [tf.TensorSpec(None)])
    gradient = tf.range(1.0, shape[0] + 1)
    if shape == [3]:
        step(gradient)
        optimizers[1].apply([gradient], [variables[1]])
    else:
        with pytest.raises(tf.errors.InvalidArgumentError, match="not compatible with expected shape"):
            step(gradient)
    for first, second in zip(
        [variables[0], *optimizers[0].variables[2:]], [variables[1], *optimizers[1].variables[2:]], strict=True
    ):
        np.testing.assert_array_equal(first, second)


def test_a_variable_without_gradient_is_left_alone():
    variables = [layers.variable("a/kernel", np.ones(2, "f4")), layers.variable("b/kernel", np.ones(2, "f4"))]
    optimizer = lars.LARS(0.5)
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply([tf.ones([2]), None], variables)
    optimizer.apply([tf.ones([2]), tf.ones([2])], variables)
    expected = reference.Lars([np.ones(2)], [True])
    expected.step([np.ones(2)], 0.5)
    np.testing.assert_allclose(variables[1], expected.weights[0], rtol=1e-6)
    expected.step([np.ones(2)], 0.5)
    np.testing.assert_allclose(variables[0], expected.weights[0], rtol=1e-6)


def test_variables_of_several_dtypes(member):
    """Each dtype has its own call of the native passes; half-precision tensors are computed in float32."""
    dtypes = ["float32", "float64", "float32", "float16", "bfloat16"]
    random = np.random.default_rng(0)
    weights = [random.integers(-8, 9, 5) / 8 for _ in dtypes]
    gradients = [random.integers(-8, 9, 5) / 8 for _ in dtypes]
    variables = [
        layers.variable(f"layer{number}/kernel", weight, dtype)
        for number, (weight, dtype) in enumerate(zip(weights, dtypes, strict=True))
    ]
    optimizer = member.make(learning_rate=0.5, weight_decay=0.25)
    expected = member.reference(weights, [True] * 5, weight_decay=0.25)
    cast = [tf.cast(gradient, dtype) for gradient, dtype in zip(gradients, dtypes, strict=True)]
    optimizer.apply(cast, variables)
    expected.step(gradients, 0.5)
    for variable, dtype, wanted in zip(variables, dtypes, expected.weights, strict=True):
        tolerance = {"float32": 1e-6, "float64": 1e-12, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
        np.testing.assert_allclose(tf.cast(variable.value, tf.float64), wanted, rtol=tolerance, atol=tolerance)


def test_plain_tensorflow_variables():
    variables = [tf.Variable([3.0, 4.0], name="dense/kernel"), tf.Variable([3.0, 4.0], name="dense/bias")]
    lars.LARS(0.5, momentum=0.0, weight_decay=0.0).apply([tf.constant([1.0, -1.0])] * 2, variables)
    np.testing.assert_allclose(variables[0], np.array([3, 4]) - 0.5 * 0.001 * 5 / 2**0.5 * np.array([1, -1]), rtol=1e-6)
    np.testing.assert_array_equal(variables[1], [2.5, 4.5])


def test_a_tensor_that_others_hold_keeps_its_value(member):
    variable = layers.variable("dense/kernel", np.ones(1000, "f4"))
    optimizer = member.make(learning_rate=0.5)
    held = variable.value.read_value()
    optimizer.apply([tf.ones([1000])], [variable])
    np.testing.assert_array_equal(held, np.ones(1000))
    assert (variable.numpy() != 1).all()


def test_a_strategy_is_refused():
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        variable, optimizer = tf.Variable([1.0]), lars.LARS()
        with pytest.raises(ValueError, match="cannot work inside a tf.distribute strategy"):
            optimizer.build([variable])


# ---- the config ----


def test_a_config_says_all(member):
    options = {"weight_decay": 0.25, "exclude": ["gain$"], "parallel": False, "clipnorm": 2.0, "epsilon": 0.5}
    optimizer = member.make(learning_rate=0.125, use_ema=True, name="named", **options)
    config = optimizer.get_config()
    assert options.items() <= config.items()
    again = type(optimizer).from_config(config)
    assert again.get_config() == config and again.exclude == ["gain$"] and again.weight_decay == 0.25
    written = keras.saving.serialize_keras_object(optimizer)
    assert keras.saving.deserialize_keras_object(written).get_config() == config


def test_the_default_patterns_are_in_the_config():
    assert lars.LARS().get_config()["exclude"] == list(BIAS_AND_NORMALISATION)
    assert lars.LARS().get_config()["parallel"] is True
