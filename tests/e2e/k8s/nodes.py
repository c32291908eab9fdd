"""The nodes of pods that are played here: each says that it is there, as a kubelet does, until the test loses it."""

import threading
import traceback
from datetime import datetime, timezone

from tests.e2e.k8s.api import Api

_FIRST = "player"
_HEARTBEAT_S = 5.0  # the node-lifecycle controller gives a node up after 50


class Nodes:
    """Nodes by their names; what goes wrong is added to `errors`."""

    def __init__(self, api: Api, errors: list[str]) -> None:
        self._api = api
        self._errors = errors
        self._closed = threading.Event()
        self.live: set[str] = set()
        # How namespace/name of a pod begins, and the node that it goes to.
        self.places: dict[str, str] = {}
        self.add(_FIRST)  # only pods of a node that is there become endpoints of Services
        threading.Thread(target=self._beat, daemon=True).start()

    def add(self, name: str) -> None:
        self._api.post("/api/v1/nodes", {"metadata": {"name": name}})
        self.live.add(name)

    def of(self, pod: str) -> str:
        """The node of a pod, namespace/name."""
        places = (node for start, node in self.places.items() if pod.startswith(start) and node in self.live)
        return next(places, _FIRST)

    def close(self) -> None:
        self._closed.set()

    def _beat(self) -> None:
        try:
            while not self._closed.wait(_HEARTBEAT_S):
                for node in list(self.live):
                    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now()}
                    self._api.patch(f"/api/v1/nodes/{node}/status", {"status": {"conditions": [ready]}})
        except Exception:
            if not self._closed.is_set():
                self._errors.append(traceback.format_exc())


def now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
