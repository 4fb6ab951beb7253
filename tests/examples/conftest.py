"""Stand-ins for programs that exist only on a cluster."""

import os

import pytest


@pytest.fixture
def programs(tmp_path):
    """Puts programs first on PATH, in place of those that exist only on a cluster."""

    def put(**texts):
        for name, text in texts.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / name).chmod(0o755)
        return {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    return put
