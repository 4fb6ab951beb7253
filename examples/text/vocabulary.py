"""Pieces of words, shared by both languages: byte-pair encoding by sentencepiece."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

import numpy as np
import sentencepiece

PAD, BEGIN, END, UNKNOWN = range(4)
_COVERAGE = 0.9998  # of the characters; rarer ones are written as their bytes


class Vocabulary:
    """Texts as numbers of pieces and back; nothing is lost, as what has no piece is written byte by byte.

    Args:
        model: what `learn` made, serialised.
    """

    def __init__(self, model: bytes):
        self.model = model
        self._pieces = sentencepiece.SentencePieceProcessor(model_proto=model)

    @classmethod
    def learn(cls, texts: Iterable[str], size: int) -> Vocabulary:
        """Learns pieces from the texts of both languages together (Vaswani et al. 2017, 5.1); one thread.

        Args:
            texts: one line each.
            size: pieces in all, those for bytes and for padding, beginning, end and the unknown included.

        Raises:
            ValueError: where the texts do not have so many pieces, or the characters alone are more.
        """
        written = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(texts),
                model_writer=written,
                vocab_size=size,
                model_type="bpe",
                character_coverage=_COVERAGE,
                byte_fallback=True,
                normalization_rule_name="identity",
                pad_id=PAD,
                bos_id=BEGIN,
                eos_id=END,
                unk_id=UNKNOWN,
                num_threads=1,
                minloglevel=2,
            )
        except RuntimeError as error:
            raise ValueError(f"Expected texts that yield a vocabulary of {size} pieces: {error}") from error
        return cls(written.getvalue())

    @property
    def size(self) -> int:
        """How many pieces there are."""
        return self._pieces.get_piece_size()

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The pieces of each text, int32, without beginning and end."""
        return [np.array(pieces, np.int32) for pieces in self._pieces.encode(list(texts), num_threads=1)]

    def decode(self, rows: Iterable[Sequence[int]]) -> list[str]:
        """The text of each row, up to its first END; padding and beginning are left out."""
        return [self._pieces.decode(_pieces_of(row)) for row in rows]


def _pieces_of(row: Sequence[int]) -> list[int]:
    pieces = [int(piece) for piece in row]
    if END in pieces:
        pieces = pieces[: pieces.index(END)]
    return [piece for piece in pieces if piece not in (PAD, BEGIN)]
