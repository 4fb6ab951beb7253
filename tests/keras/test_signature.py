"""What editors, mypy and `inspect` see of the functions that make an optimizer or a tape distributed."""

import inspect
import pathlib
import subprocess
import sys

import pytest

import hvd_sparse as hvd

FUNCTIONS = ("DistributedOptimizer", "PartialDistributedOptimizer", "DistributedGradientTape")
ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_inspect_shows_the_arguments(name):
    parameters = inspect.signature(getattr(hvd, name)).parameters
    assert {"compression", "op", "process_set"} <= parameters.keys()


def test_mypy_knows_the_arguments(tmp_path):
    """It knew `(*Any, **Any) -> Any` only."""
    script = tmp_path / "script.py"
    script.write_text("import hvd_sparse as hvd\n" + "".join(f"reveal_type(hvd.{name})\n" for name in FUNCTIONS))
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(script)]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    revealed = [line for line in told.splitlines() if "Revealed type" in line]
    assert len(revealed) == len(FUNCTIONS), told
    for line in revealed:
        assert "compression:" in line and "process_set:" in line, line
