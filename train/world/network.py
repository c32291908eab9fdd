"""Names, routes and interfaces of this machine."""

import os
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from train.errors import UserError
from train.world.environment import World

# A wrong name is reported after this long, however long the ranks may take to arrive.
_RESOLVE_S = 60.0


def choose_interfaces(world: World) -> None:
    """Let gloo, and NCCL if the job spans hosts, use the interface towards rank 0, unless the user has chosen one."""
    if "GLOO_SOCKET_IFNAME" not in os.environ and (name := interface_towards(world.master_addr)):
        os.environ["GLOO_SOCKET_IFNAME"] = name
    interfaces = os.environ.get("GLOO_SOCKET_IFNAME")
    if interfaces and world.local_world_size < world.world_size:
        # NCCL takes a name as a prefix unless "=" stands before it.
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interfaces}")


def wait_until_resolvable(name: str, timeout_s: float) -> None:
    """Return as soon as `name` has an address; raise UserError if it has none within `timeout_s` or a minute."""
    timeout_s = min(timeout_s, _RESOLVE_S)
    failure = failure_of(lambda: socket.getaddrinfo(name, None), timeout_s, pause_s=1.0)
    if failure is not None:
        raise UserError(
            f'MASTER_ADDR is "{name}", which does not resolve on {socket.gethostname()}: {failure.strerror} '
            f"(tried for {timeout_s:g} s). Check the name and the DNS of this node"
        )


def failure_of(attempt: Callable[[], object], timeout_s: float, pause_s: float) -> OSError | None:
    """Repeat the attempt until it raises no OSError; return the last one if there is no time left."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            attempt()
            return None
        except OSError as error:
            if time.monotonic() >= deadline:
                return error
        time.sleep(min(pause_s, max(0.0, deadline - time.monotonic())))


def interface_towards(address: str) -> str | None:
    """Return the name of the network interface that this machine uses to reach `address`, or None if it is unknown.

    If an address is both IPv4 and IPv6, IPv4 decides, as it does in gloo.  Linux only.
    """
    found = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)
    for family, kind, protocol, _, target in sorted(found, key=lambda entry: entry[0] != socket.AF_INET):
        try:
            with socket.socket(family, kind, protocol) as probe:
                # Connecting a datagram socket sends nothing; it only looks the route up.
                probe.connect(target)
                own = probe.getsockname()[0]
            if family == socket.AF_INET:
                name = next((name for _, name in socket.if_nameindex() if _ipv4_of(name) == own), None)
            else:
                digits = socket.inet_pton(socket.AF_INET6, own.partition("%")[0]).hex()
                # A line holds the address without colons, four numbers, and the name.
                lines = Path("/proc/net/if_inet6").read_text().splitlines()
                name = next((line.split()[-1] for line in lines if line.startswith(digits)), None)
        except OSError:
            continue  # this machine has no address or no route of that family
        if name is not None:
            return name
    return None


def _ipv4_of(interface: str) -> str | None:
    """Return the IPv4 address of a network interface; None if it has none."""
    import fcntl

    siocgifaddr = 0x8915
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        answer = fcntl.ioctl(probe, siocgifaddr, struct.pack("256s", interface.encode()[:15]))
        return socket.inet_ntoa(answer[20:24])
    return None
