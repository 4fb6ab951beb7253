"""tools/overlay: an environment over this one is made once, as a whole or not at all."""

from __future__ import annotations

import subprocess

import pytest

from tools import overlay


def test_it_has_the_packages_of_this_one_and_is_made_once(tmp_path):
    installed = []

    def install(python):
        installed.append(python)
        if len(installed) == 1:
            overlay.run(python, "-c", "raise SystemExit(3)")

    with pytest.raises(RuntimeError, match="ended with status 3"):
        overlay.made(tmp_path / "it", "an example", install)
    for _ in range(2):  # what was not finished is made anew, what was is left alone
        python = overlay.made(tmp_path / "it", "an example", install)
    assert installed == [python, python]
    told = subprocess.run([python, "-c", "import numpy, sys; print(sys.prefix)"], capture_output=True, text=True)
    assert told.stdout.strip() == str(tmp_path / "it"), told.stderr
