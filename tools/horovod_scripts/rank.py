"""What each rank runs: replaces MNIST by the handwritten digits, then runs a script as Python would.

python -m tools.horovod_scripts.rank SCRIPT [ARGUMENTS]
"""

from __future__ import annotations

import pathlib
import runpy
import sys

from examples.from_horovod.data import Images, load_mnist


def load_digits(path: str = "") -> tuple[Images, Images]:
    """Replaces `mnist.load_data` of Keras; ignores `path`, where that would store its download."""
    return load_mnist()


def replace_data() -> None:
    """Makes `mnist.load_data()` return the digits, under both of its names in Keras; nothing is downloaded."""
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
