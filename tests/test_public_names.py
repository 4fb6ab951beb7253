"""Public names keep their places and are also in `hvd_sparse.keras`."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import hvd_sparse as hvd
import hvd_sparse.keras
import link
from hvd_sparse import compression
from tools import horovod_names

MODULES = (
    "aggregators",
    "averaging",
    "callbacks",
    "checkpoint",
    "collectives",
    "compression",
    "compressors",
    "elastic",
    "error_feedback",
    "ops",
    "pipeline",
    "quantizers",
    "recipes",
    "topology",
)


@pytest.mark.parametrize("name", MODULES)
def test_public_modules_are_attributes_and_can_be_imported(name):
    assert importlib.import_module(f"hvd_sparse.{name}") is getattr(hvd, name)
    assert name in hvd.__all__


@pytest.mark.parametrize(
    "lines",
    [
        "import hvd_sparse.callbacks\nfrom hvd_sparse.compressors import MSTopK\nfrom hvd_sparse.tuning import Auto",
        "import hvd_sparse.keras as hvd\nhvd.recipes.dense()\nimport hvd_sparse.topology as topology\ntopology.init",
    ],
)
def test_they_are_the_first_lines_of_a_program(lines):
    warn = "import warnings\nwarnings.filterwarnings('error', 'hvd', DeprecationWarning)"
    program = f"{warn}\n{lines}"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr


def test_a_module_is_loaded_once():
    assert importlib.import_module("hvd_sparse.callbacks.base") is hvd_sparse.keras.callbacks.base


def test_compressors_are_also_in_the_module_that_horovod_calls_compression():
    assert all(
        getattr(compression, name) is getattr(hvd, name) for name in ("compressors", "quantizers", "error_feedback")
    )


@pytest.mark.parametrize(
    "error", [link.LinkError, hvd.RankLostError, hvd.servers.ServerLostError, hvd.pipeline.StageError]
)
def test_whatever_is_raised_when_another_process_is_gone_is_a_partner_lost_error(error):
    assert issubclass(error, hvd.PartnerLostError)


def test_hvd_sparse_keras_has_all_names():
    assert hvd_sparse.keras.__all__ == hvd.__all__
    assert [name for name in hvd.__all__ if getattr(hvd_sparse.keras, name) is not getattr(hvd, name)] == []


def test_hvd_sparse_keras_has_horovods_names():
    names = horovod_names.public_names("horovod.tensorflow.keras")
    assert len(names) > 30 and [name for name in names if not hasattr(hvd_sparse.keras, name)] == []


def test_horovods_casts_stand_beside_the_rooms_of_compression():
    assert hvd.Compression is compression.Compression
    assert issubclass(compression.FP16Compressor, compression.Compressor)
    assert issubclass(compression.NoneCompressor, compression.Compressor)
