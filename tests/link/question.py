"""Asks server 1 once, in a process of its own, which a test can stop: python -m tests.link.question ADDRESS SILENCE."""

import sys

from link import Client
from tests.link.actors import LIMIT, SAID, Heard, caller

client = Client(["127.0.0.1:1", sys.argv[1]], caller(Heard(), float(sys.argv[2])))
print(client.ask(1, "say", **SAID).result(LIMIT / 1000).kind, flush=True)
client.close()
