"""The parent of a rank: if the rank is killed, it starts another process in its place and itself ends with status 0.

horovodrun -np 3 python -m tests.keep_rank MODULE FOLDER

Both processes run MODULE, such as `tests.servers.dying_rank`. The rank passes its ticket to the parent through a pipe,
and the process that replaces it gets the ticket on its standard input.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys


def main() -> None:
    """Runs one rank and, if it is killed, its replacement."""
    command = [sys.executable, "-m", *sys.argv[1:]]
    here, there = os.pipe()
    with subprocess.Popen([*command, str(there)], pass_fds=[there]) as rank:
        os.close(there)
        ticket = os.read(here, 1 << 16)  # empty if the rank ends without writing a ticket
    if rank.returncode == -signal.SIGKILL:
        subprocess.run(command, input=ticket, check=True)


if __name__ == "__main__":
    main()
