"""One script a use."""

from quiet_tensorflow import quiet

quiet()
