"""Tests, in folders named after what they test."""

from quiet_tensorflow import quiet

quiet()
