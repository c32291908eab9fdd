"""Check, before this process takes part, that torchrun's current attempt is still the one that started it.

If a node is killed and restarted at once, it meets the attempt in which it was killed until the others notice.  Its
processes would wait for the other nodes, and the other nodes for its torchrun, until timeouts of many minutes end this.
"""

import socket
from contextlib import suppress
from datetime import timedelta
from multiprocessing import connection
from typing import TYPE_CHECKING

from train.errors import UserError
from train.world.environment import World

if TYPE_CHECKING:  # torch takes seconds to import, in which a store can end and another one begin
    import torch.distributed as dist

_TIMEOUT_S = 5.0


class Attempt:
    """One start of all processes, made before torch is imported.  Raises UserError if the launcher's store is gone."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._connection: socket.socket | None = None
        if world.store_is_served:
            # torchrun was connected to the store a moment ago.  Nothing is sent; the connection shows when it closes.
            try:
                self._connection = socket.create_connection((world.master_addr, world.master_port), _TIMEOUT_S)
            except ConnectionError:
                raise self._over("is gone") from None
            except OSError:
                pass  # such as a name that does not resolve yet; it is waited for later

    def join(self, store: "dist.Store", timeout: timedelta) -> None:
        """Enter this rank into the store of the attempt; raise UserError if that is another attempt's."""
        # The store sends nothing unasked, so there is something to read only once it has closed the connection.
        if self._connection is not None and connection.wait([self._connection], 0):
            raise self._over("was closed")
        if store.add(f"starts-of-{self._world.rank}", 1) > 1:
            rank = self._world.rank
            print(f"rank {rank} was restarted, but the previous attempt has not ended: waiting", flush=True)
            with suppress(RuntimeError):  # raised once the store is closed
                store.wait(["nothing"], timeout)
            raise self._over("already had this rank")

    def _over(self, why: str) -> UserError:
        return UserError(
            f"rank {self._world.rank} came too late: the store at {self._world.master_addr}:{self._world.master_port} "
            f"(MASTER_ADDR:MASTER_PORT) {why}, so this attempt of the job has ended. "
            "This process ends, too; restart it together with the other ranks"
        )
