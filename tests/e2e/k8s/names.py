"""Names of Services and pods within the cluster, answered as its DNS does: from the EndpointSlices, over UDP.

Source: the Kubernetes DNS-based service discovery specification; RFC 1035.
"""

import socket
import struct
import threading

from tests.e2e.k8s.api import Api, Object
from tests.e2e.k8s.sandbox import IPV6

DOMAIN = "svc.another.example" if IPV6 else "svc.cluster.local"  # as administrators may choose
_FAMILY, _RECORD = (socket.AF_INET6, 28) if IPV6 else (socket.AF_INET, 1)
_NO_SUCH_NAME = 3


class Names:
    """A name server on port 53 of one address, which knows what the API server knows."""

    def __init__(self, api: Api, address: str) -> None:
        self._api = api
        self._slices: dict[str, dict[str, list[str]]] = {}
        self._socket = socket.socket(_FAMILY, socket.SOCK_DGRAM)
        self._socket.bind((address, 53))
        for work in (self._learn, self._answer):
            threading.Thread(target=work, daemon=True).start()

    def _learn(self) -> None:
        for event, found in self._api.watch("/apis/discovery.k8s.io/v1/endpointslices"):
            if event == "DELETED":
                self._slices.pop(found["metadata"]["uid"], None)
            else:
                self._slices[found["metadata"]["uid"]] = addresses(found)

    def _answer(self) -> None:
        while True:
            question, peer = self._socket.recvfrom(512)
            name, kind, end = _question(question)
            known = [entry[name] for entry in list(self._slices.values()) if name in entry]
            found = [address for entry in known for address in entry] if kind == _RECORD else []
            # Authoritative, recursion is not to be had; one question, so many answers.
            flags = 0x8400 | (0 if known else _NO_SUCH_NAME)
            head = question[:2] + struct.pack(">5H", flags, 1, len(found), 0, 0)
            packed = (socket.inet_pton(_FAMILY, address) for address in found)
            answers = (struct.pack(">3HIH", 0xC00C, _RECORD, 1, 0, len(one)) + one for one in packed)
            self._socket.sendto(head + question[12:end] + b"".join(answers), peer)


def addresses(endpoints: Object) -> dict[str, list[str]]:
    """The addresses under each name that an EndpointSlice stands for: its Service's and those of its pods."""
    metadata = endpoints["metadata"]
    service = metadata["labels"].get("kubernetes.io/service-name")
    names: dict[str, list[str]] = {}
    for endpoint in endpoints["endpoints"] or []:
        if service and endpoint["conditions"].get("ready", True):
            base = f"{service}.{metadata['namespace']}.{DOMAIN}"
            own = [f"{endpoint['hostname']}.{base}"] if endpoint.get("hostname") else []
            for name in (base, *own):
                names.setdefault(name.lower(), []).extend(endpoint["addresses"])
    return names


def _question(message: bytes) -> tuple[str, int, int]:
    """Name and type asked for, and where the question ends."""
    labels, at = [], 12
    while message[at]:
        labels.append(message[at + 1 : at + 1 + message[at]].decode().lower())
        at += 1 + message[at]
    return ".".join(labels), int.from_bytes(message[at + 1 : at + 3], "big"), at + 5
