"""A script that has imported Keras."""

import keras  # noqa: F401
