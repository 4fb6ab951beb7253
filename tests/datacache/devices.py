"""Small devices that are really mounted, for a subprocess."""

import contextlib
import subprocess
import sys

import pytest


def run(code, size, mounted, *others):
    """Runs Python code, passing it the paths, with a tmpfs of this size mounted on the first; returns its output."""
    mounted.mkdir(exist_ok=True)
    arguments = " ".join(f'"{path}"' for path in (mounted, *others))
    mount = f'mount -t tmpfs -o size={size} none "{mounted}" && exec "{sys.executable}" -c "$0" {arguments}'
    done = subprocess.run(["unshare", "-m", "sh", "-c", mount, code], capture_output=True, text=True)
    if done.stderr.startswith(("mount", "unshare")):
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout


def fill(path):
    """Writes a file until its device is full."""
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
