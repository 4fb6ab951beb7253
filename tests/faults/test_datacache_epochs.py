"""datacache: training for several epochs on a dataset of one epoch, always in the same order, gives a warning."""

from __future__ import annotations

import warnings

import numpy as np

import datacache


def test_several_epochs_of_one_order_are_told(tmp_path):
    import keras

    source = datacache.Indexed(lambda index: bytes([index]), 8, "bytes", labels=range(8))
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    levels = {"local_dir": tmp_path, "memory_bytes": 0, "world": datacache.World()}
    with datacache.DataCache(source, lambda payload: np.zeros(1, np.float32), **levels) as cache:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            model.fit(cache.dataset(4, 0), epochs=1, verbose=0)
            assert not [each for each in seen if "same order" in str(each.message)]
            model.fit(cache.dataset(4, 0), epochs=4, verbose=0)
    (told,) = [str(each.message) for each in seen if "same order" in str(each.message)]
    assert "leave out epoch=" in told
