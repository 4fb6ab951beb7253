"""A script that has begun."""

import hvd_sparse as hvd
import lars  # noqa: F401

hvd.init()
