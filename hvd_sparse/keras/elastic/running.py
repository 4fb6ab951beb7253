"""Runs training again each time the ranks have changed."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable
from typing import Any

from hvd_sparse.exchange import naming
from hvd_sparse.keras.elastic.base import LEFT
from hvd_sparse.keras.elastic.leftovers import destroy_elsewhere
from hvd_sparse.transport import first_rank, lost, membership, topology
from hvd_sparse.transport.launcher_store import RanksMissingError
from hvd_sparse.transport.membership import HorovodInternalError, HostsUpdatedInterrupt

_log = logging.getLogger(__name__)


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function that trains, so that it is called again, with its state restored, when the ranks change.

    The first argument of the function is a state (`hvd.elastic.TensorFlowKerasState` for a Keras model). All ranks have
    the same state when the function is called. If a rank dies or cannot be reached, the others restore the last commit;
    at a planned change, of which `state.commit` hears from the launcher, everything is handed over first. Errors of the
    function's own are raised as they are. A process that gets SIGTERM, as before its host is taken away, leaves at the
    next commit (`state.leave`), unless the script handles that signal.

    Without an elastic launcher the function is called once, and the loss of a rank is an error; with `backup_dir`
    SIGTERM to any rank makes all write the next commit there, and end.

    Args:
        func: called as func(state, *args, **kwargs); it goes on where the state says.

    Returns:
        The decorated function, which returns what `func` returns.

    Raises:
        SystemExit: with status 0, if this host is no longer part of the job; with 143, if it leaves (`state.leave`).
    """

    @functools.wraps(func)
    def wrapper(state: Any, *args: Any, **kwargs: Any) -> Any:
        if membership.is_elastic():
            with membership.listening(state), membership.leaving(state), membership.handled():
                result = _run(func, state, args, kwargs)
        else:
            with membership.leaving(state) if getattr(state, "backups", None) else contextlib.nullcontext():
                state.sync()
                result = func(state, *args, **kwargs)
        if hasattr(state, "finish"):
            state.finish()
        return result

    return wrapper


def _run(func: Callable[..., Any], state: Any, args: Any, kwargs: Any) -> Any:
    changed = False
    while True:
        ended: list[BaseException] = []
        try:
            if changed:
                _change(state)
            state.sync()
            return func(state, *args, **kwargs)
        except HostsUpdatedInterrupt as notice:
            ended.append(notice)
            may_end = _hand_over(state)
            if getattr(state, "leaves", False):
                if not may_end and hasattr(state, "back_up_alone"):
                    state.back_up_alone()
                _log.warning("this process leaves the job, as it was told to.")
                raise SystemExit(LEFT) from None
        except Exception as error:
            if not _is_loss(error):
                raise
            ended.append(error)
            _restore(state, error)
        destroy_elsewhere(ended)
        changed = True


def _change(state: Any) -> None:
    """Starts Horovod again with the ranks that there are now."""
    if getattr(state, "backups", None) is not None:
        state.backups.release()  # rank 0 may be another process then
    try:
        topology.restart()
    except BaseException as error:
        removed = isinstance(error, SystemExit) and not error.code  # then it has handed over
        if not removed and not _is_loss(error) and hasattr(state, "back_up_alone"):
            state.back_up_alone()
        raise
    _begin_again(state)
    if hasattr(state, "meet"):
        state.meet()
    state.on_reset()


def _begin_again(state: Any) -> None:
    """Makes all exchanges begin again, also those of tapes, of which the state does not know."""
    covered = state.exchanges().values() if hasattr(state, "exchanges") else ()
    for exchange in naming.living:
        dropped = exchange.has_begun and exchange.planned.keeps and not any(exchange is each for each in covered)
        if dropped and first_rank.is_here():
            _log.warning(
                "%s has dropped what it had not sent: elastic states hand over the exchanges of optimizers only.",
                exchange.planned.name,
            )
        exchange.begin_again(None)


def _hand_over(state: Any) -> bool:
    """Returns whether nothing is lost if this process ends now."""
    if first_rank.is_here():
        _log.info("hosts come or go: the ranks hand over what they have.")
    if not hasattr(state, "hand_over"):
        return True
    try:
        state.hand_over()
        return state.take_leave()
    except Exception as error:
        if not _is_loss(error):
            raise
        _restore(state, error)
        return False


def _restore(state: Any, error: Exception) -> None:
    _log.warning("a rank is lost (%s); this one goes back to the last commit.", _first_line(error))
    state.restore()


def _is_loss(error: BaseException) -> bool:
    return isinstance(error, HorovodInternalError | RanksMissingError) or lost.is_related(error)


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0][:200] if text else type(error).__name__
