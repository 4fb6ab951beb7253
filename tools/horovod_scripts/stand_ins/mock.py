"""Stands in for the package mock: it is part of Python by now."""

from unittest.mock import *  # noqa: F403
