"""The package `examples`, for a script that is started by its path: `python examples/keras_digits.py`.

Python then searches the script's own folder, not the one above it, so `from examples import digits` finds this file.
With a `__path__` a module is a package, and its modules are those of this folder.
"""

from pathlib import Path

__path__ = [str(Path(__file__).parent)]
