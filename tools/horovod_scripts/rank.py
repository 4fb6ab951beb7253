"""What each rank runs: puts the handwritten digits in the place of MNIST, then runs a script as Python would.

python -m tools.horovod_scripts.rank SCRIPT [ARGUMENTS]
"""

from __future__ import annotations

import pathlib
import runpy
import sys

import numpy as np

TRAIN = 1500


def load_digits(path: str = "") -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """scikit-learn's 1,797 digits as Keras gives MNIST's: images [count, 28, 28] and labels [count], both uint8."""
    from sklearn import datasets

    images, labels = datasets.load_digits(return_X_y=True)
    images = np.round(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    images = np.pad(images.repeat(3, axis=1).repeat(3, axis=2), [(0, 0), (2, 2), (2, 2)])
    labels = labels.astype(np.uint8)
    return (images[:TRAIN], labels[:TRAIN]), (images[TRAIN:], labels[TRAIN:])


def replace_data() -> None:
    """From now on `mnist.load_data()` gives the digits, by each of Keras's two names; nothing is downloaded."""
    import keras
    import tensorflow as tf

    keras.datasets.mnist.load_data = load_digits
    tf.keras.datasets.mnist.load_data = load_digits


def main() -> None:
    """Runs the script that the command line names."""
    script = pathlib.Path(sys.argv[1])
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(script.parent))
    replace_data()
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
