"""The trials of installing: they take their lines from the docs, and a system ends with whoever made it."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tools.install_trials import chroots, images, systems

ROOT = Path(__file__).resolve().parents[2]
MAKER = """
import pathlib, sys, time
from tools.install_trials.systems import System

class Empty(System):
    def fill(self):
        (self.root / "file").write_text("something")

with Empty(pathlib.Path(sys.argv[1])) as system:
    system.outside("touch", str(system.root / "dev" / "shm" / "mounted"))
    print(system.entered[2], flush=True)
    sys.stdin.read()
"""


def test_the_docs_have_the_lines_that_are_tried():
    page = (ROOT / chroots.PAGE).read_text()
    packages, lines = chroots.blocks(page, "Install")[:2]
    more, training = chroots.blocks(page, chroots.SEVERAL)
    assert packages.startswith("sudo apt-get install ") and more.startswith("sudo apt-get install ")
    assert "make install PYTHON=ENV/bin/python" in lines.splitlines()
    assert "examples/launch/horovodrun.sh" in training and "--checkpoint-dir" in training


def test_the_dockerfile_is_built_under_the_name_that_the_template_has():
    told = re.search(r"docker build -f (\S+) -t (\S+) \.", (ROOT / images.DOCKERFILE).read_text())
    assert told and told[1] == images.DOCKERFILE
    assert images.named_image() == f"{told[2]}:latest"


@pytest.mark.skipif(os.geteuid() != 0, reason="a system is made by root")
@pytest.mark.parametrize("ended", [signal.SIGKILL, signal.SIGTERM])
def test_a_system_ends_with_its_maker(tmp_path, ended):
    folder = tmp_path / "system"
    command = [sys.executable, "-c", MAKER, folder]
    maker = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    first = psutil.Process(int(maker.stdout.readline()))
    guard = first.parent().parent()
    assert (folder / "file").exists() and not (folder / "dev" / "shm" / "mounted").exists(), "mounts are its own"
    maker.send_signal(ended)
    maker.wait()
    guard.wait(60)
    assert not first.is_running() and not folder.exists()


def test_a_file_that_a_variable_names_gets_a_place_that_no_package_replaces(tmp_path):
    (tmp_path / "bundle.crt").write_text("certificates")
    assert systems.inside("PIP_CERT", str(tmp_path / "bundle.crt")) == f"{systems.COPIES}/PIP_CERT"
    assert systems.inside("PIP_DEFAULT_TIMEOUT", "180") == "180"
