"""Tools that maintain this repository."""

from quiet_tensorflow import quiet

quiet()
