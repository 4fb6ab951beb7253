"""Stands in for the package mock, which has become part of Python."""

from unittest.mock import *  # noqa: F403
