"""Reports of a failed collective: which ranks are missing, as far as the others can know."""

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch.distributed as dist

from train.errors import SharedError, UserError, first_line

# A rank that gave up waits this long for the reports of the others, and looks for them this often.
_REPORTS_S, _POLL_S = 5.0, 0.2
# A killed process closes its sockets one by one, so its store may still accept connections after a message failed.
_CLOSING_S = 0.5
_CONNECT_TIMEOUT_S = 2.0


class MissingRanks(RuntimeError):
    """Error of a collective that cannot complete without `ranks` of `group`; `why` says what happened to them."""

    def __init__(self, group: dist.ProcessGroup, ranks: list[int], why: str) -> None:
        of_job = dist.get_process_group_ranks(group)
        super().__init__(f"rank {', '.join(str(of_job[rank]) for rank in ranks)} {why}")


@contextmanager
def naming_missing_ranks(
    what: str = "a message between the processes failed",
    position: str = "outside of CustomDDP",
    group: dist.ProcessGroup | None = None,
) -> Iterator[None]:
    """Turn the failure of a collective in the block into a UserError that names the missing ranks.

    what: what has failed, for the message.  group: the group of the collective; None for all ranks.
    position: where in the training this rank waits; the other ranks show it if they wait elsewhere.
    """
    _Reports.withdraw()
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, MissingRanks | dist.DistError) and "/gloo/" not in str(error):
            raise
        lines = [f"{what}: {_reason(error)}", *_who_is_missing(error, position, group)]
        raise UserError("\n".join(lines)) from error


def _reason(error: RuntimeError) -> str:
    """Return the first line of gloo's or NCCL's error, without its file names and advice."""
    return re.sub(r"^\[\S+:\d+\] ", "", first_line(error)).partition(" This is typically caused")[0]


def _who_is_missing(error: RuntimeError, position: str, group: dist.ProcessGroup | None) -> list[str]:
    """Return a line or two: which ranks gave up elsewhere than at `position`, and which have not reported.

    The ranks that gave up exchange their positions through the store.  Before a failure this costs nothing.
    If the error names the missing ranks, the lines have the reasons that these have left with report_failure().
    """
    gathered = _Reports(position, group)
    if isinstance(error, MissingRanks):
        with suppress(OSError, RuntimeError):
            gathered.look()
        return [f"rank {_listed(at)} {why}" for why, at in gathered.elsewhere.items() if why.startswith("failed")]
    # In a thread, because a store that hangs ignores its timeouts.
    thread = threading.Thread(target=gathered.collect, daemon=True)
    thread.start()
    thread.join(2 * _REPORTS_S)
    lines = [f"rank {_listed(ranks)} {where}" for where, ranks in gathered.elsewhere.items()]
    if not gathered.complete:
        lines.append(
            f"cannot tell which ranks are missing, because the store{gathered.place} is gone, too. Rank 0 or the "
            "torchrun of its node serves the store: check that node and its last log lines first"
        )
    elif gathered.silent:
        lines.append(
            f"no report within {_REPORTS_S:g} s from rank {_listed(gathered.silent)} (ended or still waiting): "
            "see its log"
        )
    return lines


def report_failure(error: Exception) -> None:
    """Write the reason why this rank ends into the store for the other ranks, unless they are the reason."""
    if isinstance(error, SharedError) or (isinstance(error, UserError) and error.__cause__ is not None):
        return
    with suppress(OSError, RuntimeError):
        _Reports("", None).write(f"failed: {error if isinstance(error, UserError) else repr(error)}")


class _Reports:
    """Places at which the ranks of a group gave up, as each rank wrote them into the store.

    A rank that continues withdraws its report: a program may catch the error and train in another group.
    """

    _is_written = False

    def __init__(self, position: str, group: dist.ProcessGroup | None) -> None:
        self._here = f"gave up at another place: {position}"
        self.elsewhere: dict[str, list[int]] = {}
        # torch 2.6 takes no None here.
        self.silent = set(dist.get_process_group_ranks(group or dist.group.WORLD)) - {dist.get_rank()}
        self.complete = False
        store = dist.distributed_c10d._get_default_store()
        self._store = dist.PrefixStore("gave-up", store)
        while isinstance(store, dist.PrefixStore):
            store = store.underlying_store
        self._server = (store.host, store.port) if isinstance(store, dist.TCPStore) else None
        self.place = f" at {store.host}:{store.port}" if isinstance(store, dist.TCPStore) else ""

    def collect(self) -> None:
        """Collect reports until all ranks have reported or time is up.  `complete` stays False if the store is gone."""
        time.sleep(_CLOSING_S)
        deadline = time.monotonic() + _REPORTS_S
        with suppress(OSError, RuntimeError):
            self.write(self._here)
            while self.silent and time.monotonic() < deadline:
                self.look()
                time.sleep(_POLL_S)
            self.complete = True

    def look(self) -> None:
        """Read the reports that are new; raise OSError or RuntimeError if the store is gone."""
        self._refuse_lost_store()
        for rank in [rank for rank in sorted(self.silent) if self._store.check([str(rank)])]:
            self.silent.remove(rank)
            where = self._store.get(str(rank)).decode()
            if where != self._here:
                self.elsewhere.setdefault(where, []).append(rank)

    def write(self, text: str) -> None:
        """Tell the other ranks why or where this one gave up; raise OSError or RuntimeError if the store is gone."""
        self._refuse_lost_store()
        self._store.set(str(dist.get_rank()), text)
        _Reports._is_written = True

    @staticmethod
    def withdraw() -> None:
        if _Reports._is_written:
            _Reports._is_written = False
            reports = _Reports("", None)
            with suppress(OSError, RuntimeError):
                reports._refuse_lost_store()
                reports._store.delete_key(str(dist.get_rank()))

    def _refuse_lost_store(self) -> None:
        # A plain socket first: a TCPStore without its server prints a page of stack for each request.
        if self._server is not None:
            socket.create_connection(self._server, _CONNECT_TIMEOUT_S).close()


def _listed(ranks: set[int] | list[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))
