"""Averages of CPU tensors through memory that the ranks of one host share, without copies through sockets.

Each rank writes its gradients into its own memory, which all others have mapped.  A tensor is cut into one piece per
rank.  Each rank computes the mean of its piece (or --logical-world's sum), and writes it to all.  So all hold the same
bits, and each byte is read once and written once.  There is no thread: a rank works on its pieces when it hands in a
tensor and while it waits for one.  The memory has no name, so nothing is left behind however a process ends.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from train.collectives.broadcast import of_all_ranks
from train.collectives.missing_ranks import MissingRanks
from train.collectives.tree_sum import Block
from train.errors import UserError
from train.world.owner import started

# This much stays in the cache of a core between the sum and its copies.
_BLOCK_BYTES = 2**18
# A rank's two counters in its page, as indices of int64; each has a separate cache line.
_HANDED_IN, _REDUCED = 0, 8
# Giving freed memory back takes milliseconds, so it is not done before smaller tensors.
_GIVEN_BACK_BYTES = 2**22
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mremap.restype = ctypes.c_size_t
_MAY_MOVE, _FIXED, _FAILED = 1, 2, ctypes.c_size_t(-1).value
_SPINS, _NAP_S, _PEERS_ALIVE_S = 200, 50e-6, 0.5
_Combine = Callable[[Block], Tensor]


class SharedMemory:
    """Averages tensors that it has allocated, over the ranks of `group`; `of_one_host` makes an instance.

    All ranks allocate the same tensors in the same order, and hand them in in the same order.
    """

    def __init__(self, group: dist.ProcessGroup, pages: list[Tensor], pids: list[int]) -> None:
        self.group, self.rank, self.pids = group, dist.get_rank(group), pids
        self.timeout_s = group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
        self._pages = pages
        self._counters = [(ctypes.c_int64 * 16).from_address(page.data_ptr()) for page in pages]
        self._pieces: dict[int, list[list[Tensor]]] = {}
        self._queue: deque[tuple[_Combine, list[Block]]] = deque()

    @staticmethod
    def of_one_host(group: dist.ProcessGroup) -> SharedMemory | None:
        """Return an instance if there are several ranks and all can share memory; else None on all.  A collective."""
        mapped = _map_for_all(mmap.PAGESIZE, group) if dist.get_world_size(group) > 1 else None
        return None if mapped is None else SharedMemory(group, *mapped)

    def allocate(self, numel: int, dtype: torch.dtype) -> Tensor:
        """Return zeros that the other ranks see, too.  A collective.  Raises UserError if there is no memory for it."""
        num_bytes = numel * dtype.itemsize
        if num_bytes > _GIVEN_BACK_BYTES:
            # The new memory is not from the heap, and the heap would keep what the last bucket's gradients have freed.
            _libc.malloc_trim(0)
        mapped = _map_for_all(num_bytes, self.group)
        if mapped is None:
            raise UserError(f"not every rank could share {num_bytes / 2**20:.1f} MiB for gradients: free some memory")
        of_ranks = [memory.view(dtype) for memory in mapped[0]]
        flat = of_ranks[self.rank]
        # Pieces and blocks begin at pages, so that no two ranks write to the same page.
        piece_bytes = -(-num_bytes // (len(of_ranks) * mmap.PAGESIZE)) * mmap.PAGESIZE
        start, end = self.rank * piece_bytes, min((self.rank + 1) * piece_bytes, num_bytes)
        piece = slice(start // dtype.itemsize, end // dtype.itemsize)
        blocks = (tensor[piece].split(_BLOCK_BYTES // dtype.itemsize) for tensor in of_ranks)
        self._pieces[flat.data_ptr()] = [[*block] for block in zip(*blocks, strict=True)]
        return flat

    def renew(self, flat: Tensor) -> Tensor:
        """Return the memory of `flat`, which `allocate` made, at another address; the other ranks notice nothing.

        Tensors that still use the old address keep their content, in memory that is this rank's alone.
        """
        fd = os.memfd_create("gradients")
        try:
            os.ftruncate(fd, flat.nbytes)
            renewed = torch.from_file(f"/proc/self/fd/{fd}", shared=False, size=flat.numel(), dtype=flat.dtype)
        finally:
            os.close(fd)
        renewed.copy_(flat)
        # The two change places.  Nobody finds the old address without memory, because the second call replaces it.
        old, new = flat.data_ptr(), renewed.data_ptr()
        again = _remap(old, 0, flat.nbytes, _MAY_MOVE)  # a second mapping of the same memory
        _remap(new, flat.nbytes, flat.nbytes, _MAY_MOVE | _FIXED, old)
        _remap(again, flat.nbytes, flat.nbytes, _MAY_MOVE | _FIXED, new)
        blocks = self._pieces[new] = self._pieces.pop(old)
        for parts in blocks:
            start, size = parts[self.rank].storage_offset(), parts[self.rank].numel()
            parts[self.rank] = renewed[start : start + size]
        return renewed

    def average(self, flat: Tensor) -> PendingTensor:
        """Begin to replace `flat`, which `allocate` made, by its mean over the ranks."""
        return self.replace([flat], _mean)

    def replace(self, flats: Sequence[Tensor], combine: _Combine) -> PendingTensor:
        """Begin to replace the first of `flats`, which `allocate` made alike, on all ranks by what `combine` returns.

        It is called with parts[n][rank], blocks of the rank's flats[n], which it may overwrite.
        """
        self._queue.append((combine, [*zip(*(self._pieces[flat.data_ptr()] for flat in flats), strict=True)]))
        mine = self._counters[self.rank]
        # x86 makes stores visible in their order: whoever sees the counter sees the gradients.
        mine[_HANDED_IN] += 1
        self._reduce_what_all_handed_in()
        return PendingTensor(self, mine[_HANDED_IN])

    def wait_until_reduced(self, number: int) -> None:
        """Return when the first `number` tensors that were handed in have been replaced.

        Raises MissingRanks if ranks have ended, or stay away for longer than the group's timeout.
        """
        spins, deadline, look_at = 0, time.monotonic() + self.timeout_s, time.monotonic() + _PEERS_ALIVE_S
        while True:
            self._reduce_what_all_handed_in()
            if self._least(_REDUCED) >= number:
                return
            spins += 1
            if spins <= _SPINS:
                os.sched_yield()
                continue
            time.sleep(_NAP_S)
            now = time.monotonic()
            if now >= look_at:
                look_at = now + _PEERS_ALIVE_S
                self._raise_if_peers_are_gone(number, now >= deadline)

    def _least(self, counter: int) -> int:
        return min([counters[counter] for counters in self._counters])

    def _reduce_what_all_handed_in(self) -> None:
        mine = self._counters[self.rank]
        while self._queue and self._least(_HANDED_IN) > mine[_REDUCED]:
            combine, blocks = self._queue.popleft()
            for block in blocks:
                total = combine(block)
                for part in block[0]:
                    part.copy_(total)
                for parts in block:
                    for part in parts[: self.rank] + parts[self.rank + 1 :]:
                        # Unmapped until it is needed again, because mapped pages count as memory of this process.
                        address, size = ctypes.c_void_p(part.data_ptr()), ctypes.c_size_t(part.nbytes)
                        _libc.madvise(address, size, mmap.MADV_DONTNEED)
            mine[_REDUCED] += 1

    def _raise_if_peers_are_gone(self, number: int, timed_out: bool) -> None:
        behind = [rank for rank, counters in enumerate(self._counters) if counters[_REDUCED] < number]
        ended = [rank for rank in behind if not started(self.pids[rank])]
        if ended:
            raise MissingRanks(self.group, ended, "ended", ended=True)
        if timed_out:
            late = [rank for rank, counters in enumerate(self._counters) if counters[_HANDED_IN] < number]
            why = f"did not take part within {self.timeout_s:g} s"
            raise MissingRanks(self.group, late or behind, why, ended=False)


def _mean(block: Block) -> Tensor:
    """Return the mean over the ranks, in the memory of the first."""
    (parts,) = block
    for part in parts[1:]:
        parts[0].add_(part)
    return parts[0].mul_(1.0 / len(parts))


@dataclass
class PendingTensor:
    """What replaces the tensors that were handed in as number `number`; `wait` returns when it is there."""

    memory: SharedMemory
    number: int

    def wait(self) -> None:
        self.memory.wait_until_reduced(self.number)


def _map_for_all(num_bytes: int, group: dist.ProcessGroup) -> tuple[list[Tensor], list[int]] | None:
    """Return zeroed memory of each rank, mapped by all, and the process IDs; None on all ranks if this fails.

    A collective.  A rank is on this host if the token that it sent is found in its memory.
    """
    fd = _new_memory(num_bytes)
    try:
        token = secrets.token_bytes(min(16, num_bytes))
        offer = None
        if fd is not None:
            os.pwrite(fd, token, 0)
            # Processes in different network namespaces count as different hosts: benchmarks simulate nodes by them.
            offer = (os.getpid(), fd, token, str(Path("/proc/self/ns/net").readlink()))
        offers = of_all_ranks(offer, group)
        mapped = _map_all([other for other in offers if other], num_bytes) if None not in offers else []
        results = of_all_ranks(len(mapped) == len(offers), group)
    finally:
        # Mappings stay valid without the open file.
        if fd is not None:
            os.close(fd)
    if not all(results):
        return None
    mapped[dist.get_rank(group)][: len(token)] = 0
    return mapped, [offer[0] for offer in offers if offer]


def _new_memory(num_bytes: int) -> int | None:
    # Only x86: other processors may make writes visible in another order than the program's.
    if not hasattr(os, "memfd_create") or platform.machine() not in ("x86_64", "AMD64"):
        return None
    fd = os.memfd_create("gradients")
    try:
        # Allocate all of it now: a page that is missing later would kill the process.
        os.posix_fallocate(fd, 0, num_bytes)
    except OSError:
        os.close(fd)
        return None
    return fd


def _map_all(offers: list[tuple[int, int, bytes, str]], num_bytes: int) -> list[Tensor]:
    """Return the memory of each rank as bytes; a shorter list if one cannot be mapped."""
    mapped = []
    for pid, fd, token, network in offers:
        memory = Path(f"/proc/{pid}/fd/{fd}")
        try:
            with memory.open("rb") as file:
                if network != offers[0][3] or file.read(len(token)) != token:
                    break
            mapped.append(torch.from_file(str(memory), shared=True, size=num_bytes, dtype=torch.uint8))
        except (OSError, RuntimeError):
            break
    return mapped


def _remap(*arguments: int) -> int:
    address: int = _libc.mremap(*map(ctypes.c_size_t, arguments))
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), "mremap failed")
    return address
