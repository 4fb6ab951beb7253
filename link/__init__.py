"""Links between the processes of a job: authenticated requests and answers over ZeroMQ, several at a time.

    ECHO = Protocol("echo", 1, {"say": {"loud": (bool, 1)}}, {"said": {}}, request_bytes=1 << 20, answer_bytes=1 << 20)
    server = Server("10.0.0.1:7070", 0, "job 7", secret, ECHO, lambda request: request.answer("said", request.payload))
    client = Client(["10.0.0.1:7070"], Caller(1, "job 7", secret, ECHO))
    answer = client.ask(0, "say", b"hello", loud=True)
    said = result_of(answer)

Both sides prove that they know the job's secret, and each message is authenticated (`session`). Headers are msgpack
with one form for each kind (`forms`), payloads are raw bytes that are not copied. A server has one thread (`server`),
and so has a client, with a connection to each server (`client`, `connection`). A connection whose other side has not
proved anything is soon closed (`strangers`). A user of links may count, and report in its own words, the `events`;
Ctrl-C ends its waits for answers (`waiting`).
"""

from link.addresses import hold, resolve
from link.asking import Answer, Caller, LinkError, PartnerLostError, Patience
from link.client import Client
from link.events import Events, Refusal
from link.forms import Form, Protocol, WireError
from link.server import Request, Server
from link.waiting import result_of, wait, wait_until

__all__ = [
    "Answer",
    "Caller",
    "Client",
    "Events",
    "Form",
    "LinkError",
    "PartnerLostError",
    "Patience",
    "Protocol",
    "Refusal",
    "Request",
    "Server",
    "WireError",
    "hold",
    "resolve",
    "result_of",
    "wait",
    "wait_until",
]
