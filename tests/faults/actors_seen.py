"""What a user sees of a run: measurements of short epochs, and warnings at a line of his own."""

from __future__ import annotations

import pathlib
import tempfile
import warnings

import keras
import numpy as np

import hvd_sparse as hvd


def _model(recipe=None):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), aggregator=recipe), "mse")
    return model


def _fit(model, epochs=1, **options):
    x = np.ones((24, 4), "f4")
    model.fit(x, x[:, :1], batch_size=8, epochs=epochs, verbose=0, **options)


def control_every_step_is_measured():
    callback = hvd.callbacks.TelemetryCallback(every=1)
    _fit(_model(), 2, callbacks=[callback])
    assert [each["step"] for each in callback.records] == [1, 2, 3, 4, 5, 6]


def the_last_step_of_each_epoch_is_measured():
    """An epoch of fewer steps than `every` left an empty file."""
    folder = pathlib.Path(tempfile.mkdtemp())
    callback = hvd.callbacks.TelemetryCallback(folder, every=100)
    _fit(_model(), 2, callbacks=[callback])
    assert [each["step"] for each in callback.records] == [3, 6]
    (written,) = (folder / f"rank{hvd.rank()}").iterdir()
    assert b"bytes_across" in written.read_bytes()


def a_warning_points_at_the_users_line():
    """It pointed into a library, at one or another depth."""
    caught = []
    _caught(caught, lambda: hvd.DistributedOptimizer(keras.optimizers.Adam(), aggregator=hvd.recipes.hitopk(0.01)))
    model = _model(hvd.recipes.hitopk(0.1))
    model.run_eagerly = True
    _fit(model)
    model.set_weights(model.get_weights())
    _caught(caught, lambda: _fit(model))
    found = [
        each.filename for each in caught if "known to end worse" in str(each.message) or "dropped" in str(each.message)
    ]
    assert found == [__file__, __file__] if hvd.rank() == 0 else found == [], found


def _caught(caught, call):
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        call()
    caught += heard
