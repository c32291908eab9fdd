"""Nodes on one machine whose links are as slow as asked: network namespaces around a bridge, limited by tbf.

The namespaces have no names.  Each lives as long as a process in it, and that process as long as its standard input,
a pipe from us.  So the kernel removes everything, whether we end normally, by Ctrl-C or by SIGKILL.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from benchmarks.ranks import Node

INTERFACE = "eth0"
_TOOLS = ("ip", "tc", "unshare", "nsenter")


def missing_for_nodes() -> str | None:
    """Say what `start_nodes` needs and does not find; None if nothing is missing."""
    if os.geteuid() != 0:
        return "network namespaces need root: run the benchmark with sudo"
    absent = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if absent:
        return f"{', '.join(absent)} not found: apt-get install iproute2 util-linux"
    return None


@contextmanager
def start_nodes(number: int) -> Iterator[list[Node]]:
    """Start `number` nodes on one switch, each in its own network namespace; links are as fast as the machine.

    Raises RuntimeError with the message of the tool that failed.
    """
    with ExitStack() as stack:
        switch = stack.enter_context(_namespace())
        _run([*_enter(switch), "ip", "link", "add", "switch", "type", "bridge"])
        _run([*_enter(switch), "ip", "link", "set", "switch", "up"])
        nodes = []
        for index in range(number):
            node = stack.enter_context(_namespace())
            port = ["ip", "link", "add", f"port{index}", "type", "veth", "peer", "name", INTERFACE, "netns", str(node)]
            _run([*_enter(switch), *port])
            _run([*_enter(switch), "ip", "link", "set", f"port{index}", "master", "switch", "up"])
            _run([*_enter(node), "ip", "address", "add", f"10.0.0.{index + 1}/24", "dev", INTERFACE])
            _run([*_enter(node), "ip", "link", "set", INTERFACE, "up"])
            nodes.append(Node(enter=_enter(node), interface=INTERFACE))
        yield nodes


def limit_rate(mbit_per_s: float) -> None:
    """Limit the rate at which the calling node sends; the senders limit what it receives."""
    limit = ["rate", f"{mbit_per_s:g}mbit", "burst", "256kb", "latency", "50ms"]
    _run(["tc", "qdisc", "replace", "dev", INTERFACE, "root", "tbf", *limit])


@contextmanager
def _namespace() -> Iterator[int]:
    """Start a process in a new network namespace; yield its process id."""
    command = ["unshare", "--net", "--", "sh", "-c", "echo; exec cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        if holder.stdout.readline() != b"\n":
            raise RuntimeError("unshare --net failed: this system does not let us make network namespaces")
        try:
            yield holder.pid
        finally:
            holder.kill()


def _enter(process: int) -> tuple[str, ...]:
    return ("nsenter", f"--net=/proc/{process}/ns/net")


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
