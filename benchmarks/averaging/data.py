"""Messages of programs, in English, to be classified by the program that a message comes from.

They are the source texts of the English-German catalogues on the machine (examples/text/catalogues.py); a catalogue
that cannot be read has none. Left out are catalogues of names (iso-codes), messages with fewer than two words, and
messages whose words occur in more than one catalogue; messages that differ only in case, numbers, punctuation or
placeholders count once. The programs with the most messages are used, each with at most the same number, so that
frequency gives little away. The messages are chosen and divided by hashes of their words.
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
OF_NAMES = "iso_"  # prefix of catalogues of names
LEAST_WORDS = 2


class Messages(NamedTuple):
    """Messages as pieces [count, length] int32, with PAD in front, and their programs [count] int32."""

    pieces: np.ndarray
    labels: np.ndarray


class Programs(NamedTuple):
    """The messages of some programs.

    Attributes:
        names: names of the programs, sorted; a label is an index into it.
        train: training messages.
        validation: messages that are not in `train`.
        test: messages that are in neither of the others.
        digest: digest of the data, which differ between machines.
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
    """The programs with the most messages, and their encoded messages.

    Args:
        count: number of programs.
        most: maximum number of messages per program.
        vocabulary: number of pieces, learnt from the training messages.
        length: maximum number of pieces per message; longer messages are truncated.
        held_out: share of the messages for validation, and the same share for the test.
        folder: folder of the catalogues, as /usr/share/locale; None for those of the machine.

    Raises:
        RuntimeError: if there are fewer programs.
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
    """A catalogue's messages by their words; {} if it cannot be read."""
    try:
        pairs = catalogues.read(path)
    except (OSError, ValueError):
        return {}
    tidied = sorted((corpus.tidy(pair.source) for pair in pairs), reverse=True)  # of equal words the first one sorted
    found = {tuple(corpus.words(message)): message for message in tidied}
    return {" ".join(words): message for words, message in found.items() if len(words) >= LEAST_WORDS}


def _unique(found: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
    """The messages of each program whose words no other program has."""
    times = collections.Counter(words for messages in found.values() for words in messages)
    return {
        name: [message for words, message in messages.items() if times[words] == 1] for name, messages in found.items()
    }


def _drawn(message: str) -> bytes:
    """A sort key that does not depend on other messages, and is unrelated to how messages are divided."""
    return hashlib.blake2b(" ".join(corpus.words(message)).encode(), digest_size=16).digest()


def _encoded(pairs: Sequence[Pair], names: Sequence[str], vocabulary: Vocabulary, length: int) -> Messages:
    """Encodes messages, with padding first, so that an LSTM ends with the last piece."""
    pieces = np.full((len(pairs), length), PAD, np.int32)
    for row, encoded in enumerate(vocabulary.encode([pair.source for pair in pairs])):
        kept = encoded[:length]
        pieces[row, length - len(kept) :] = kept
    places = {name: place for place, name in enumerate(names)}
    return Messages(pieces, np.array([places[pair.target] for pair in pairs], np.int32))


class Regression(NamedTuple):
    """The test results of a logistic regression on bags of pieces: a score in points, and a loss in nats."""

    score: float
    loss: float


def regression(given: Programs, vocabulary: int) -> Regression:
    """Fits a logistic regression to the training messages, with scikit-learn's defaults."""
    model = LogisticRegression(max_iter=200).fit(_bags(given.train, vocabulary), given.train.labels)
    told = model.predict_proba(_bags(given.test, vocabulary))
    right = np.searchsorted(model.classes_, given.test.labels)
    score = 100.0 * float(np.mean(told.argmax(axis=1) == right))
    return Regression(score, float(-np.mean(np.log(told[np.arange(len(right)), right]))))


def _bags(messages: Messages, vocabulary: int) -> sparse.csr_matrix:
    """How often each piece occurs in each message, [count, vocabulary]."""
    rows, places = np.nonzero(messages.pieces != PAD)
    pieces = messages.pieces[rows, places]
    return sparse.csr_matrix((np.ones(len(pieces)), (rows, pieces)), (len(messages.labels), vocabulary))
