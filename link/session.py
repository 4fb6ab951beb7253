"""How both sides authenticate: a challenge on the job's secret when a connection begins, then a tag on each message.

Asker and server each choose a nonce. From the secret, both nonces and everything that was said before, HKDF (RFC 5869,
SHA-256) derives the proofs that each side sends and a key for each direction, so a recorded connection, or a part of
it, is useless against another. A message's tag is AES-256-GMAC (NIST SP 800-38D) over header and payload, with the
message's number as its nonce: a message that was altered, cut, left out, sent twice or out of order has the wrong tag,
and the connection ends. No number is used twice with a key, because keys are new for each connection.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from typing import Any, NamedTuple

import msgpack
import zmq
import zmq.utils.z85
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from link import forms

_NAME = b"hvd_sparse link 1"
_NUMBER = struct.Struct(">4xQ")  # 12 bytes, as GCM requires
_LENGTH = struct.Struct(">Q")


class RefusedError(Exception):
    """The other side is not authentic, or its message was altered."""


class Greeting(NamedTuple):
    """The asker's first message: its protocol, the server, the subject, and the asker itself."""

    protocol: str
    version: int
    server: int
    subject: str
    asker: int
    nonce: bytes


class Keys(NamedTuple):
    """The keys and proofs that both sides derive."""

    asker_proof: bytes
    server_proof: bytes
    to_server: bytes
    to_asker: bytes


class Channel:
    """One direction of a connection: its messages, numbered."""

    def __init__(self, key: bytes):
        """Takes the key of this direction and connection."""
        self._key, self._number = algorithms.AES(key), 0

    def tag(self, header: Any, payload: Any) -> bytes:
        """The tag of the next message."""
        gmac = Cipher(self._key, modes.GCM(_NUMBER.pack(self._number))).encryptor()
        self._number += 1
        gmac.authenticate_additional_data(_LENGTH.pack(len(header)) + bytes(header))
        gmac.authenticate_additional_data(payload)
        gmac.finalize()
        return gmac.tag

    def check(self, header: Any, payload: Any, tag: Any) -> None:
        """Checks that the next message is the one that was sent.

        Raises:
            RefusedError: if it is not.
        """
        if not hmac.compare_digest(self.tag(header, payload), bytes(tag)):
            raise RefusedError("a message with a wrong tag")


class Session(NamedTuple):
    """A connection whose two sides have authenticated each other."""

    asker: int
    sending: Channel
    receiving: Channel


def nonce() -> bytes:
    """A fresh random nonce."""
    return secrets.token_bytes(forms.NONCE)


def derive(secret: bytes, greeting: Greeting, challenge: bytes) -> Keys:
    """Derives keys and proofs from the secret, both nonces, and everything that was said."""
    said = hashlib.sha256(_NAME + msgpack.packb([*greeting, challenge])).digest()
    return Keys(*(_expand(_extract(said, secret), name) for name in Keys._fields))


def curve_keys(secret: bytes, protocol: str) -> tuple[bytes, bytes]:
    """Public and secret CURVE key of all servers of the job that use a protocol, both in Z85."""
    private = zmq.utils.z85.encode(_expand(_extract(_NAME + b" " + protocol.encode(), secret), "curve"))
    return zmq.curve_public(private), private


def _extract(salt: bytes, secret: bytes) -> bytes:
    return hmac.digest(salt, secret, "sha256")


def _expand(key: bytes, name: str) -> bytes:
    """The first, and only, block of 32 bytes."""
    return hmac.digest(key, _NAME + b" " + name.encode() + b"\x01", "sha256")
