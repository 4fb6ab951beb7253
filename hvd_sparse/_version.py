"""The version, which nothing has to import the package for."""

__version__ = "0.1.0"
