"""The parent of a rank: ends well where the rank is killed, and starts another process in its place.

horovodrun -np 3 python -m tests.keep_rank MODULE FOLDER

Both run MODULE, such as `tests.servers.dying_rank`. The rank tells its parent the ticket by a pipe, and the process
that comes in its place gets it by another.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys


def main() -> None:
    """Keeps one rank."""
    command = [sys.executable, "-m", *sys.argv[1:]]
    here, there = os.pipe()
    with subprocess.Popen([*command, str(there)], pass_fds=[there]) as rank:
        os.close(there)
        ticket = os.read(here, 1 << 16)  # nothing, where the rank ends without
    if rank.returncode == -signal.SIGKILL:
        subprocess.run(command, input=ticket, check=True)


if __name__ == "__main__":
    main()
