"""Messages of programs, in English: what is to be told is the program that a message is from.

They are the source sides of the English-German catalogues that the machine has (examples/text/catalogues.py), of which
one that cannot be read has none. Left out are catalogues of names (iso-codes), messages with fewer than two words, and
messages whose words stand in more than one catalogue; what differs in case, numbers, punctuation or placeholders alone
counts once. Those programs are taken that have most messages, and of each of these equally many or fewer, so that none
is told by being frequent. Which messages these are and how they are divided goes by hashes of their words.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from examples.text import catalogues, corpus
from examples.text.catalogues import Pair
from examples.text.corpus import Corpus
from examples.text.vocabulary import PAD, Vocabulary

LANGUAGE = "de"
OF_NAMES = "iso_"  # how catalogues of names begin
LEAST_WORDS = 2


class Messages(NamedTuple):
    """Messages as pieces [count, length] int32, PAD before the first one, and their programs [count] int32."""

    pieces: np.ndarray
    labels: np.ndarray


class Programs(NamedTuple):
    """The messages of some programs.

    Attributes:
        names: of the programs, sorted; a label is a place in it.
        train: messages.
        validation: messages of which none is in `train`.
        test: messages of which none is in the others.
        digest: tells the data apart that differ between machines.
    """

    names: tuple[str, ...]
    train: Messages
    validation: Messages
    test: Messages
    digest: str

    def __str__(self) -> str:
        parts = " + ".join(f"{len(part.labels):,}" for part in (self.train, self.validation, self.test))
        return f"{parts} messages of {len(self.names)} programs, {self.digest[:8]}"


@functools.lru_cache(2)
def programs(
    count: int, most: int, vocabulary: int, length: int, held_out: float, folder: str | None = None
) -> Programs:
    """The programs with most messages, and these in numbers.

    Args:
        count: of programs.
        most: messages of a program at most.
        vocabulary: pieces, learnt from the training messages.
        length: pieces of a message at most; what is longer is cut off.
        held_out: share of the messages for validation, and as many for the test.
        folder: of the catalogues, as /usr/share/locale; None for those of the machine.

    Raises:
        RuntimeError: where there are fewer programs.
    """
    divided = corpus_of(count, most, held_out, folder)
    names = tuple(sorted({pair.target for pair in divided.train}))
    learnt = Vocabulary.learn((pair.source for pair in divided.train), vocabulary)
    parts = [_encoded(part, names, learnt, length) for part in divided[:3]]
    return Programs(names, *parts, corpus.digest(divided))


@functools.lru_cache(2)
def corpus_of(count: int, most: int, held_out: float, folder: str | None = None) -> Corpus:
    """Pairs of a message and its program, divided; see `programs`."""
    paths = catalogues.of_system(LANGUAGE, catalogues.SYSTEM if folder is None else [folder])
    found = _unique({path.stem: _messages(path) for path in paths if not path.stem.startswith(OF_NAMES)})
    names = sorted(found, key=lambda name: (-len(found[name]), name))[:count]
    if len(names) < count:
        raise RuntimeError(
            f"Expected message catalogues of at least {count} programs, found {len(names)}. Install more packages with "
            "their translations (on Debian containers: without path-exclude=/usr/share/locale in /etc/dpkg/dpkg.cfg.d)."
        )
    pairs = sorted(Pair(message, name) for name in names for message in sorted(found[name], key=_drawn)[:most])
    return Corpus(*corpus.divide(pairs, held_out), f"{len(pairs):,} messages of {count} programs")


def _messages(path: pathlib.Path) -> dict[str, str]:
    """A catalogue's messages by their words; {} where it cannot be read."""
    try:
        pairs = catalogues.read(path)
    except (OSError, ValueError):
        return {}
    tidied = sorted((corpus.tidy(pair.source) for pair in pairs), reverse=True)  # of equal words the first one sorted
    found = {tuple(corpus.words(message)): message for message in tidied}
    return {" ".join(words): message for words, message in found.items() if len(words) >= LEAST_WORDS}


def _unique(found: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
    """The messages of each program whose words no other one has."""
    times = collections.Counter(words for messages in found.values() for words in messages)
    return {
        name: [message for words, message in messages.items() if times[words] == 1] for name, messages in found.items()
    }


def _drawn(message: str) -> bytes:
    """Puts messages in an order that does not depend on which others there are, nor tells how they are divided."""
    return hashlib.blake2b(" ".join(corpus.words(message)).encode(), digest_size=16).digest()


def _encoded(pairs: Sequence[Pair], names: Sequence[str], vocabulary: Vocabulary, length: int) -> Messages:
    """The padding comes first, so that an LSTM ends with the message's last piece."""
    pieces = np.full((len(pairs), length), PAD, np.int32)
    for row, encoded in enumerate(vocabulary.encode([pair.source for pair in pairs])):
        kept = encoded[:length]
        pieces[row, length - len(kept) :] = kept
    places = {name: place for place, name in enumerate(names)}
    return Messages(pieces, np.array([places[pair.target] for pair in pairs], np.int32))


class Regression(NamedTuple):
    """What a logistic regression on bags of pieces tells of the test: a score in points, and a loss in nats."""

    score: float
    loss: float


def regression(given: Programs, vocabulary: int) -> Regression:
    """Fits one to the training messages, by scikit-learn and its defaults."""
    model = LogisticRegression(max_iter=200).fit(_bags(given.train, vocabulary), given.train.labels)
    told = model.predict_proba(_bags(given.test, vocabulary))
    right = np.searchsorted(model.classes_, given.test.labels)
    score = 100.0 * float(np.mean(told.argmax(axis=1) == right))
    return Regression(score, float(-np.mean(np.log(told[np.arange(len(right)), right]))))


def _bags(messages: Messages, vocabulary: int) -> sparse.csr_matrix:
    """How often each piece stands in each message, [count, vocabulary]."""
    rows, places = np.nonzero(messages.pieces != PAD)
    pieces = messages.pieces[rows, places]
    return sparse.csr_matrix((np.ones(len(pieces)), (rows, pieces)), (len(messages.labels), vocabulary))
