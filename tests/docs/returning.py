"""A rank of a job in which one process is killed and replaced, each by a block of a page.

    horovodrun -np 3 python -m tests.keep_rank tests.docs.returning PAGE FOLDER

One block of the page passes the ticket on, another is what the replacement runs. The other ranks train until the
replacement has begun to.
"""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import time

import keras

import hvd_sparse as hvd
from tests.docs import blocks, ranks

DIES, STEP, PAUSE = 1, 3, 0.05  # the pause leaves the processor to the process that starts
TICKET, RETURN = ".ticket(", ".return_with("  # the words by which the two blocks are found


class Death(keras.callbacks.Callback):
    """Passes the ticket on as the page says, and kills the process."""

    def __init__(self, page: str, folder: pathlib.Path, names: dict):
        super().__init__()
        self._page, self._folder, self._names = page, folder, names

    def on_train_batch_end(self, batch, logs=None):
        if batch == STEP:
            ranks.run(find(self._page, TICKET), self._names, self._folder)
            os.kill(os.getpid(), signal.SIGKILL)


class UntilBack(keras.callbacks.Callback):
    """Ends the training when a file is there, or after a time, so that a rank that is left behind ends too."""

    def __init__(self, back: pathlib.Path):
        super().__init__()
        self._back, self._end = back, time.monotonic() + ranks.LIMIT

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(PAUSE)
        self.model.stop_training = self._back.exists() or time.monotonic() > self._end


class Back(keras.callbacks.Callback):
    """Writes that file when the training has begun."""

    def __init__(self, back: pathlib.Path):
        super().__init__()
        self._back = back

    def on_train_batch_end(self, batch, logs=None):
        self._back.touch()


def find(page: str, word: str) -> blocks.Block:
    """The block of the page that has this word."""
    (found,) = (block for block in blocks.of_page(blocks.ROOT / page) if word in block.text)
    return found


def first(page: str, folder: pathlib.Path, pipe: str) -> None:
    """What a rank does."""
    hvd.init()
    names = {**ranks.names_given(page), "hvd": hvd, "os": os, "sys": sys}
    optimizer = names["optimizer"] = names["make_optimizer"]()
    names["model"].compile(optimizer, "mse")
    sys.argv[1:] = [pipe]
    dies = [Death(page, folder, names)] if hvd.rank() == DIES else []
    until = UntilBack(folder / "back")
    names["model"].fit(names["x"], names["y"], batch_size=8, epochs=1_000_000, verbose=0, callbacks=[*dies, until])
    names["end"](optimizer)


def again(page: str, folder: pathlib.Path) -> None:
    """What the replacement does."""
    callbacks = [Back(folder / "back")]
    names = {**ranks.names_given(page), "hvd": hvd, "sys": sys, "callbacks": callbacks}
    ranks.run(find(page, RETURN), names, folder)
    (folder / "returned").touch()


def main() -> None:
    """Runs on each rank, with a pipe, and in the replacement of the one that was killed, without."""
    page, folder, *pipe = sys.argv[1:]
    if pipe:
        first(page, pathlib.Path(folder), *pipe)
    else:
        again(page, pathlib.Path(folder))


if __name__ == "__main__":
    main()
