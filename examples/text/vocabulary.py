"""A vocabulary of word pieces, shared by both languages: byte-pair encoding by sentencepiece."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

import numpy as np

from examples import extras

sentencepiece = extras.need("sentencepiece")

PAD, BEGIN, END, UNKNOWN = range(4)
_COVERAGE = 0.9998  # of the characters; rarer ones are encoded as bytes


class Vocabulary:
    """Encodes texts as numbers of pieces, and decodes them without loss: what has no piece is encoded byte by byte.

    Args:
        model: sentencepiece model, serialised, as made by `learn`.
    """

    def __init__(self, model: bytes):
        self.model = model
        self._pieces = sentencepiece.SentencePieceProcessor(model_proto=model)

    @classmethod
    def learn(cls, texts: Iterable[str], size: int) -> Vocabulary:
        """Learns pieces from the texts of both languages together (Vaswani et al. 2017, 5.1); one thread.

        Args:
            texts: texts of one line each.
            size: total number of pieces, including those for bytes, padding, beginning, end and unknown.

        Raises:
            ValueError: if the texts do not have that many pieces, or their characters alone are more.
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
        """The number of pieces."""
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
