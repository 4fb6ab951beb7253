"""What looks after this repository."""

from quiet_tensorflow import quiet

quiet()
