"""Example scripts, one for each use."""

from quiet_tensorflow import quiet

quiet()
