"""An echo server in its own process, which a test can kill: python -m tests.link ADDRESS; it ends with its input."""

import sys

from link import Server
from tests.link.actors import ECHO, SECRET, SUBJECT, Heard, echo

server = Server(sys.argv[1], 1, SUBJECT, SECRET, ECHO, echo, Heard())
print("ready", flush=True)
sys.stdin.read()
server.close()
