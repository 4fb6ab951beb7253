"""Digests of the data of studies, which differ between machines."""

from __future__ import annotations

import functools

from examples import translation
from examples.text import corpus


@functools.cache
def digest_of_catalogues(words: tuple[str, ...]) -> str:
    """A digest of the sentence pairs that examples/translation.py finds on this machine with these options."""
    options = translation.parse(words)
    return corpus.digest(corpus.of_catalogues(options.catalogues, options.least_words, options.most_words))
