"""Watch: ends a check that would hang, and says which rank it waited for.

A collective waits for the slowest rank, and NCCL's cannot be interrupted.  So a thread of each rank writes a sign of
life into the store each second, whatever the main thread waits for.  Rank 0 judges by these signs; the others follow
its judgement.  If rank 0 falls silent, each of them judges alone.
"""

import json
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NoReturn

import torch.distributed as dist

from train.diagnosis.card import Card
from train.diagnosis.meeting import wait_until_read
from train.errors import first_line, leave, record_for_torchrun
from train.world.owner import stat_of

_BEAT_S = 1.0
# How long rank 0 waits for the others to read its judgement, because the store may end with rank 0.
_READ_S = 3 * _BEAT_S


class Watch:
    """Runs while the ranks check one another; ends the process with exit code 1 if they cannot continue.

    connect: makes a connection to the store for the thread alone, since a waiting connection blocks other users.
    silence_s: a rank without a sign of life for this long counts as paused or gone.
    """

    def __init__(self, connect: Callable[[], dist.Store], own: Card, cards: Sequence[Card], silence_s: float) -> None:
        self._connect, self._own, self._silence_s = connect, own, silence_s
        self._cards = {card.rank: card for card in cards}
        # Rank 0 watches all other ranks, and each of them watches rank 0.
        watched = [card.rank for card in cards] if own.rank == 0 else [0]
        self._sign: dict[str, Any] = {"doing": "the start", "failed": None}
        # The last sign of life of each, and when this sign was new.
        self._watched = {rank: (dict(self._sign), time.monotonic()) for rank in watched if rank != own.rank}
        self._failed_since: float | None = None
        self._store_answered = time.monotonic()
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._beat, self._guard)]

    def __enter__(self) -> "Watch":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, Exception):
            self._sign["failed"] = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
            time.sleep(2 * self._silence_s + _READ_S)  # until the judgement about all ranks ends the process
            self._end(self._failure_of(self._own.rank, self._sign))
        self._stopped.set()
        self._threads[0].join(_READ_S)

    def doing(self, what: str) -> None:
        """Note what this rank does from now on, for the others to name if it falls silent."""
        self._sign["doing"] = what

    def _beat(self) -> None:
        number = 0
        try:
            store = self._connect()
            while not self._stopped.wait(_BEAT_S if number else 0):
                number += 1
                store.set(f"alive-{self._own.rank}", json.dumps({"number": number, **self._sign}))
                if store.check(["verdict"]):
                    verdict = store.get("verdict").decode()
                    store.add("verdict-read", 1)
                    self._end(verdict)
                self._look(store)
                self._store_answered = time.monotonic()
        except RuntimeError as error:
            if not self._stopped.is_set():
                self._end(f"the connection to the store was lost ({first_line(error)}): {self._store_is_at()}")

    def _look(self, store: dist.Store) -> None:
        for rank, (known, _) in self._watched.items():
            key = f"alive-{rank}"
            if store.check([key]) and (sign := json.loads(store.get(key))) != known:
                self._watched[rank] = sign, time.monotonic()
        verdict = self._verdict()
        if verdict is not None:
            if self._own.rank == 0:
                store.set("verdict", verdict)
                wait_until_read(store, "verdict-read", len(self._watched), _READ_S)
            self._end(verdict)

    def _verdict(self) -> str | None:
        """Return why the checks cannot continue; None as long as they can.

        If a rank dies, the others fail at once; only its silence shows that it was the cause.  So a failure is reported
        only once a silent rank would be known.
        """
        now = time.monotonic()
        signs = {rank: sign for rank, (sign, _) in self._watched.items()} | {self._own.rank: self._sign}
        failures = {rank: sign for rank, sign in signs.items() if sign["failed"] is not None}
        if failures and self._failed_since is None:
            self._failed_since = now
        lines = [
            self._silence_of(rank, now) for rank, (_, since) in self._watched.items() if now - since > self._silence_s
        ]
        if not lines and self._failed_since is not None and now - self._failed_since > self._silence_s + 2 * _BEAT_S:
            lines = [self._failure_of(rank, sign) for rank, sign in failures.items()]
        return "\n".join(lines) or None

    def _failure_of(self, rank: int, sign: dict[str, Any]) -> str:
        return f"{self._cards[rank].process} failed during {sign['doing']}: {sign['failed']}"

    def _silence_of(self, rank: int, now: float) -> str:
        card, (sign, since) = self._cards[rank], self._watched[rank]
        head = f"{card.process} has given no sign of life for {now - since:.0f} s (last seen during {sign['doing']})"
        state = stat_of(card.pid)[0] if card.host == self._own.host else "unknown"
        if state == "T":
            return f"{head}: its process is stopped (SIGSTOP or a debugger); `kill -CONT {card.pid}` continues it"
        if state in ("gone", "Z"):
            return f"{head}: its process has ended; look at the last lines of its log"
        return (
            f"{head}. Possible reasons: the process is paused, swapped out or killed; its node is down; the network "
            "is down. Look at the process with `ps`, and at the last lines of its log"
        )

    def _guard(self) -> None:
        """End this process if the store itself does not answer; `_beat` would wait for it forever."""
        while not self._stopped.wait(_BEAT_S):
            if time.monotonic() - self._store_answered > self._silence_s + _READ_S:
                self._end(f"the store has not answered for {self._silence_s:g} s: {self._store_is_at()}")

    def _store_is_at(self) -> str:
        first = self._cards[0]
        server = "the torchrun of rank 0's node" if self._own.launcher == "torchrun" else f"rank 0 (pid {first.pid})"
        where = f"the store at {self._own.master_addr}:{self._own.master_port} runs in {server}, on {first.host}"
        if server.startswith("rank") and first.host == self._own.host and stat_of(first.pid)[0] == "T":
            return f"{where}. That process is stopped (SIGSTOP or a debugger); `kill -CONT {first.pid}` continues it"
        return (
            f"{where}. That process is paused or has ended, or its network is gone; look at the last lines of its log"
        )

    def _end(self, reason: str) -> NoReturn:
        if self._own.rank == 0 or self._own.local_rank == 0:
            print(f"PROBLEM: {reason}", flush=True)
        record_for_torchrun(reason)
        leave(1)  # the main thread may wait in a collective
