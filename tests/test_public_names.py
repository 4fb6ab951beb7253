"""Public names keep their places and are also in `hvd_sparse.keras`; a name that has moved says where it is now."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings

import pytest

import hvd_sparse as hvd
import hvd_sparse.keras
from hvd_sparse import _moved, compression
from hvd_sparse.aggregators import Aggregator
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


@pytest.mark.parametrize("place, name", [(place, name) for place, names in _moved.NAMES.items() for name in names])
def test_a_name_that_has_moved_works_and_tells_the_new_one(place, name):
    new, value = _moved.NAMES[place][name]
    with pytest.warns(DeprecationWarning, match=rf"^hvd\.{place}\.{name} is now {new}") as told:
        assert getattr(getattr(hvd, place), name) is value
    assert told[0].filename == __file__
    there, _, leaf = new.rpartition(".")
    assert getattr(hvd if there == "hvd" else importlib.import_module(there), leaf) is value


def test_a_name_that_was_never_there_is_an_attribute_error():
    with warnings.catch_warnings(), pytest.raises(AttributeError, match="topology' has no attribute 'Median'"):
        warnings.simplefilter("error")
        hvd.topology.Median  # noqa: B018 - expected to raise


def test_members_that_were_renamed_work_under_their_old_names():
    recipe = hvd.recipes.sparcml(0.1, as_published=True)
    with pytest.warns(DeprecationWarning, match=r"^SparCMLAlgorithm1\.sums is now called returns_sum") as told:
        assert recipe.sums is True
    assert told[0].filename == __file__
    exchange = hvd.GradientExchange()
    for old, new in {"kept": "residual_sum", "own": "rank_state"}.items():
        with pytest.warns(DeprecationWarning, match=f"^GradientExchange.{old} is now called {new}"):
            assert getattr(exchange, old) == getattr(exchange, new)
    with pytest.raises(AttributeError, match="'GradientExchange' object has no attribute 'owned'"):
        exchange.owned  # noqa: B018 - expected to raise


def test_members_may_be_defined_under_their_old_names():
    with pytest.warns(
        DeprecationWarning, match=r"^Mine\.(owed is now called residual|sums is now called returns_sum)"
    ) as told:

        class Mine(Aggregator):
            sums = property(lambda self: True)

            def owed(self, state):
                return 7

            def restored(self, state, residual): ...

            def reduce(self, parts, divisor, state): ...

            def contributions(self, size, members): ...

            def _create(self, spec, communicator): ...

    assert len(told) == 2 and Mine().residual(None) == 7 and Mine().returns_sum is True
