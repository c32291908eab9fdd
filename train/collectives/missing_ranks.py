"""Reports of a failed collective: which ranks are missing, as far as the others can know."""

import re
import socket
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import TimeoutError
from contextlib import contextmanager, suppress
from functools import partial

import torch.distributed as dist

from train.collectives.call_site import call_site
from train.errors import SharedError, UserError, first_line, ranks_by_value
from train.world.threads import in_thread

# A rank that gave up waits this long for the reports of the others, and looks for them this often.
_REPORTS_S, _POLL_S = 5.0, 0.2
# A killed process closes its sockets one by one, so its store may still accept connections after a message failed.
_CLOSING_S = 0.5
_CONNECT_TIMEOUT_S = 2.0


class MissingRanks(RuntimeError):
    """Error of a collective that cannot complete without `ranks` of `group`; `why` says what happened to them.

    ended: their processes have ended, so nothing more will come from them.
    """

    def __init__(self, group: dist.ProcessGroup, ranks: list[int], why: str, ended: bool) -> None:
        self.ended = ended
        of_job = dist.get_process_group_ranks(group)
        super().__init__(f"rank {', '.join(str(of_job[rank]) for rank in ranks)} {why}")


@contextmanager
def naming_missing_ranks(
    what: str = "a message between the processes failed", position: str = "", group: dist.ProcessGroup | None = None
) -> Iterator[None]:
    """Turn the failure of a collective in the block into a UserError that names the missing ranks.

    what: what has failed, for the message.  group: the group of the collective; None for all ranks.
    position: where in a backward or forward this rank waits; the other ranks show it if they wait elsewhere.
    Both messages have the call of Run's method, too.
    """
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, MissingRanks | dist.DistError) and "/gloo/" not in str(error):
            raise
        # torch 2.6 takes no None here.
        others = sorted({*dist.get_process_group_ranks(group or dist.group.WORLD)} - {dist.get_rank()})
        live = reversed([*traceback.walk_stack(None)])
        site = call_site([*live, *traceback.walk_tb(error.__traceback__)])
        place = " in ".join(filter(None, (position, site))) or "outside of a Run"
        has_ended = isinstance(error, MissingRanks) and error.ended
        lines = _reasons(others) if has_ended else _who_is_missing(place, others)
        head = f"{site}: " if site else ""
        raise UserError("\n".join([f"{head}{what}: {_reason(error)}", *lines])) from error


def _reason(error: RuntimeError) -> str:
    """Return the first line of gloo's or NCCL's error, without its file names and advice."""
    return re.sub(r"^\[\S+:\d+\] ", "", first_line(error)).partition(" This is typically caused")[0]


def _reasons(others: list[int]) -> list[str]:
    """Return a line for each reason that ranks have left with report_failure()."""
    with suppress(OSError, RuntimeError):
        return [line for line in _by_rank(_read(others)) if " failed: " in line]
    return []


def _who_is_missing(place: str, others: list[int]) -> list[str]:
    """Return a line or two: which ranks gave up elsewhere than at `place`, and which have not reported."""
    here = f"gave up at another place: {place}"
    try:
        reports = in_thread(partial(_exchange, here, others)).result(2 * _REPORTS_S)
    except (OSError, RuntimeError, TimeoutError):
        address = "{}:{}".format(*server) if (server := _server()) else "of the job"
        return [
            f"cannot tell which ranks are missing, because the store at {address} is gone, too. Rank 0 or the torchrun "
            "of its node serves the store: check that node and its last log lines first"
        ]
    lines = _by_rank({rank: text for rank, text in reports.items() if text != here})
    if silent := [str(rank) for rank in others if rank not in reports]:
        ranks = ", ".join(silent)
        lines.append(f"no report within {_REPORTS_S:g} s from rank {ranks} (ended or still waiting): see its log")
    return lines


def _by_rank(reports: dict[int, str]) -> list[str]:
    return [f"{ranks} {text}" for text, ranks in ranks_by_value(reports).items()]


def report_failure(error: Exception) -> None:
    """Write the reason why this rank ends into the store for the other ranks, unless they are the reason."""
    if (
        not dist.is_initialized()
        or isinstance(error, SharedError)
        or (isinstance(error, UserError) and error.__cause__ is not None)
    ):
        return
    with suppress(OSError, RuntimeError):
        _store().set(str(dist.get_rank()), f"failed: {error if isinstance(error, UserError) else repr(error)}")


def _exchange(here: str, others: list[int]) -> dict[int, str]:
    """Return what the others have said; rank 0, with which the store may end, waits until they have read."""
    time.sleep(_CLOSING_S)
    own, deadline = dist.get_rank(), time.monotonic() + _REPORTS_S
    _store().set(str(own), here)
    found = dict[int, str]()
    try:
        while len(found) < len(others) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            found |= _read(others)
        _store().set(f"{own} has read", "")
        readers = [f"{rank} has read" for rank, text in found.items() if own == 0 and not text.startswith("failed: ")]
        while readers and not _store().check(readers) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
    except (OSError, RuntimeError):
        if not found:
            raise
    return found


def _read(others: list[int]) -> dict[int, str]:
    store = _store()
    return {rank: store.get(str(rank)).decode() for rank in others if store.check([str(rank)])}


def _store() -> dist.Store:
    """Return the store of the reports.  Raises OSError if it is gone."""
    if server := _server():
        # A plain socket first: a TCPStore without its server prints a page of stack for each request.
        socket.create_connection(server, _CONNECT_TIMEOUT_S).close()
    return dist.PrefixStore("gave-up", dist.distributed_c10d._get_default_store())


def _server() -> tuple[str, int] | None:
    store = dist.distributed_c10d._get_default_store()
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return (store.host, store.port) if isinstance(store, dist.TCPStore) else None
