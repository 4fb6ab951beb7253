"""What ranks tell each other when they meet after a change, and what they know then."""

from __future__ import annotations

from typing import NamedTuple


class Member(NamedTuple):
    """What ranks tell each other when they meet; JSON-serializable.

    Attributes:
        process: identifies the process.
        host: the name of its host.
        commits: the numbers of the commits that it still has and that were made together with others, ascending.
    """

    process: str
    host: str
    commits: list[int]


class Meeting(NamedTuple):
    """What ranks know of each other after a change.

    Attributes:
        root: the first rank that was there before, from which new ones get everything; 0 at the start.
        before: the number of ranks before; 0 at the start.
        joined: the ranks that are new, or have no file in a backup.
        gone: the ranks that are no longer there, by their former numbers, with their hosts; of a backup those without a
            file.
        ranks: the process and the host of each rank.
        from_disk: whether training goes on from a backup.
    """

    root: int
    before: int
    joined: list[int]
    gone: dict[int, str]
    ranks: list[tuple[str, str]]
    from_disk: bool = False

    @property
    def is_start(self) -> bool:
        """Whether no rank was there before."""
        return self.before == 0
