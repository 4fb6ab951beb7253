"""What each rank runs: puts the handwritten digits in the place of MNIST, then runs a script as Python would.

python -m tools.horovod_scripts.rank SCRIPT [ARGUMENTS]
"""

from __future__ import annotations

import pathlib
import runpy
import sys

from examples.horovod.data import Images, load_mnist


def load_digits(path: str = "") -> tuple[Images, Images]:
    """As `mnist.load_data` of Keras; the path for what it would download is not looked at."""
    return load_mnist()


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
