"""How a rank whose process is gone comes back: only with datagrams, as Horovod cannot admit a new process."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np

from hvd_sparse.averaging.datagrams import Datagrams, DatagramsChannel, Ticket

_LITTLE = 1e-6
_ATTEMPTS = 30  # each waits for the transport's patience
_FORM = "Expected a complete ticket from hvd.averaging.ticket, got something else."


class Return(NamedTuple):
    """What a rank needs to come back into a job; it contains a secret.

    Attributes:
        channel: the ticket of the channel that it had.
        account: the settings that all ranks have agreed on.
    """

    channel: Ticket
    account: dict[str, Any]

    def __repr__(self) -> str:
        return f"Return({self.channel})"

    def to_bytes(self) -> bytes:
        """All fields, the secret included."""
        return json.dumps([self.channel.to_json(), self.account]).encode()

    @classmethod
    def from_bytes(cls, told: bytes) -> Return:
        """What `to_bytes` has encoded; ValueError, which does not repeat the input, if it is something else."""
        try:
            channel, account = json.loads(told)
            return cls(Ticket.from_json(channel), dict(account))
        except (ValueError, TypeError, LookupError):
            raise ValueError(_FORM) from None

    def require_alike(self, account: dict[str, Any]) -> None:
        """Raises ValueError if this process has built another model, or has other settings, than the job."""
        own = json.loads(json.dumps(account))
        differences = [
            f"this process has {key} = {json.dumps(own.get(key))}, the job has {json.dumps(self.account.get(key))}"
            for key in sorted({*own, *self.account})
            if own.get(key) != self.account.get(key)
        ]
        if differences:
            raise ValueError(
                f"This process cannot take the place of a rank of the job: {'; '.join(differences)}. Build the same "
                "model and pass the same settings as the lost rank."
            )


def require_return(transport: Any, exact_rounds: bool) -> Datagrams:
    """The transport, if ranks that are gone can come back with it; ValueError if they cannot.

    Args:
        transport: how the vectors are sent.
        exact_rounds: whether some rounds are exact.
    """
    if not isinstance(transport, Datagrams):
        raise ValueError(
            "A lost rank can return only if models travel solely as datagrams, because Horovod's collectives cannot "
            f"admit it: use hvd.averaging.Datagrams(), not {type(transport).__name__}."
        )
    if exact_rounds:
        raise ValueError(
            "A lost rank can return only if no round is exact, because exact rounds and the guard are Horovod "
            "collectives, which cannot admit it: leave out resynchronise_every and max_distance."
        )
    return transport


def take_over(channel: DatagramsChannel) -> tuple[np.ndarray, int]:
    """The model of the live ranks, from rounds to which this rank contributes nothing; not a collective.

    Args:
        channel: one that was reopened.

    Returns:
        The vector [d] float32, with the latest value received of each segment, and the round to take part in. Under
        `spread`, all but a millionth of the energy of each block, in expectation.

    Raises:
        RuntimeError: if no other rank takes part for 30 times the transport's patience.
    """
    vector, round, attempts = np.zeros(channel.ticket.size, np.float32), 0, 0
    lacks = _Lacks(channel)
    while not lacks.nothing:
        listened = channel.listen(vector, round)
        if listened is None:
            attempts += 1
            _require_attempts(attempts, channel.ticket.rank)
            continue
        attempts = 0
        vector, round = listened.vector, listened.round + 1
        lacks.take(listened.came)
    return vector, round


class _Lacks:
    """What has not arrived yet of a model.

    Under `spread` a segment is in another basis in each round. The energy that a block lacks then shrinks, in
    expectation, by the share of segments that are lost, as a vector has the same energy as its transform.
    """

    def __init__(self, channel: DatagramsChannel):
        self._all, self._spread = channel.segments(), channel.spread
        self._missing, self._shares = self._all, np.ones(len(self._all))

    @property
    def nothing(self) -> bool:
        """Whether everything has arrived, or all but a millionth of each block's energy."""
        return bool((self._shares <= _LITTLE).all()) if self._spread else not self._missing.any()

    def take(self, came: np.ndarray) -> None:
        """Records which segments arrived in a round."""
        lost = self._all & ~came
        self._missing = self._missing & lost
        self._shares = self._shares * lost.sum(axis=1) / np.maximum(self._all.sum(axis=1), 1)


def _require_attempts(attempts: int, rank: int) -> None:
    if attempts >= _ATTEMPTS:
        raise RuntimeError(
            f"No rank is averaging, so rank {rank} has no model to take over. If all ranks have ended, there is "
            "nothing to return to; otherwise restart the job from its last checkpoint."
        )
