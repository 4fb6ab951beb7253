"""Under recipes that are ahead, ranks lost what a layer or a train step wrote, and their teachers drifted apart."""

import keras
import numpy as np
import tensorflow as tf

import hvd_sparse as hvd

RECIPES = {
    "recommended": lambda: hvd.recipes.recommended(0.05),
    "diloco": lambda: hvd.recipes.diloco(every=5, rate=1.0, momentum=0.0),
}


def _data():
    """Different on each rank."""
    data = np.random.default_rng(10 + hvd.rank()).standard_normal((128, 16)).astype("f4")
    return data, 3 * data[:, :1]


def _equal_on_all_ranks(values):
    mine = np.concatenate([np.ravel(value) for value in values])
    everywhere = hvd.allgather(tf.constant(mine[np.newaxis])).numpy()
    np.testing.assert_array_equal(everywhere[0], everywhere[1])


def _spectral(recipe, compiled):
    """The largest singular values of kernels that their layer keeps at about 1."""
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((16,)), *(keras.layers.SpectralNormalization(each) for each in layers)])
    model.layers[0].layer.kernel.assign(5 * np.random.default_rng(0).standard_normal((16, 16)))
    if compiled:
        hvd.compiled_train_step(model)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), aggregator=RECIPES[recipe]()), "mse")
    model.fit(*_data(), batch_size=32, epochs=5, verbose=0)
    _equal_on_all_ranks(weight.numpy() for weight in model.trainable_variables)
    for each in layers:
        largest = np.linalg.norm(each.kernel.numpy(), 2)
        assert 0.9 < largest < 1.1, (recipe, compiled, largest)


def spectral_normalization_lasts():
    _spectral("recommended", compiled=False)


def spectral_normalization_lasts_in_a_compiled_step():
    _spectral("recommended", compiled=True)


def spectral_normalization_lasts_between_exchanges():
    _spectral("diloco", compiled=True)


class Critic(keras.Sequential):
    """Clips its weights before the tape, and has a teacher that follows them before the update."""

    clips = True

    def train_step(self, data):
        x, y = data
        for weight in self.trainable_variables if self.clips else ():
            weight.assign(tf.clip_by_value(weight, -0.01, 0.01))
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        for taught, weight in zip(self.teacher, self.trainable_variables, strict=True):
            taught.assign(0.9 * taught + 0.1 * weight)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


def _critic(recipe, rate, clips=True):
    keras.utils.set_random_seed(1)
    model = Critic([keras.Input((16,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    model.teacher = [tf.Variable(weight) for weight in model.trainable_variables]
    model.clips = clips
    aggregator = None if recipe == "dense" else RECIPES[recipe]()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(rate), aggregator=aggregator), "mse")
    model.fit(*_data(), batch_size=32, epochs=3, verbose=0)
    return model


def clipping_before_the_tape_lasts():
    model = _critic("recommended", 1e-4)
    assert max(np.abs(weight).max() for weight in model.get_weights()) < 0.02


def teachers_see_the_shared_weights():
    for recipe in RECIPES:
        model = _critic(recipe, 1e-2, clips=False)
        _equal_on_all_ranks(taught.numpy() for taught in model.teacher)


def control_dense_training_does_all_this():
    model = _critic("dense", 1e-4)
    assert max(np.abs(weight).max() for weight in model.get_weights()) < 0.02
    _equal_on_all_ranks(taught.numpy() for taught in model.teacher)
