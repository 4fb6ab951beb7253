"""Why what does not pass cannot pass: one sentence for each, found by the name and by what was said."""

from __future__ import annotations

import dataclasses
import fnmatch
import re


@dataclasses.dataclass(frozen=True)
class Reason:
    """Holds for what has such a name (`fnmatch`) and says such a thing (regular expression)."""

    name: str
    said: str
    sentence: str


REASONS: tuple[Reason, ...] = ()


def reason_for(name: str, said: str) -> str | None:
    """The first sentence that fits; None where there is none, which the report then says."""
    for reason in REASONS:
        if fnmatch.fnmatch(name, reason.name) and re.search(reason.said, said):
            return reason.sentence
    return None
