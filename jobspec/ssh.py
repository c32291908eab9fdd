"""Start a torchrun script on several machines over ssh, and end it on all: at Ctrl-C, or when one of them fails."""

import os
import re
import shlex
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from subprocess import PIPE, STDOUT, Popen, check_output
from threading import Thread

from jobspec.targets import TEMPLATES
from jobspec.why import why

_NODES = re.compile(r"(?:#.*\n)+?# Start (?:([0-9]+) to )?([0-9]+) nodes, ")  # in the head, above all values of a spec
_HOST = re.compile(r"(?:#.*\n)+?# The nodes reach each other by these names: (\S+)\n")
_SECRET = re.compile(r'^: "\$\{(\w+):\?', re.MULTILINE)
_SSH = ["ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=20", "--"]
_CONNECTED = "render-job: connected"
_SIGNALS: dict[int, str] = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}


class Node(Thread):
    """A machine, and the ssh that runs the script there."""

    def __init__(self, host: str, text: str, news: "SimpleQueue[Node | int]") -> None:
        super().__init__(name=host, daemon=True)
        self.text, self.news = text, news
        self.connected, self.code, self.reason, self.lines = False, 0, "", deque[str]([""], maxlen=2000)
        command = [*_SSH, host, f"echo {_CONNECTED!r}; exec bash -s"]
        # In a session of its own, ssh does not get the Ctrl-C of the terminal.
        self.ssh = Popen(command, stdin=PIPE, stdout=PIPE, stderr=STDOUT, start_new_session=True)
        self.start()

    def run(self) -> None:
        """Show what the node writes, until it ends."""
        assert self.ssh.stdout is not None
        for raw in self.ssh.stdout:
            line = os.fsdecode(raw).rstrip("\r\n")
            if not self.connected and line.endswith(_CONNECTED):  # until now ~/.bashrc could swallow the script
                self.send(self.text)
                self.connected = True
                continue
            _say(f"{self.name}: {line}")
            self.lines.extend([line] if line else [])
        self.code = 255 if (code := self.ssh.wait()) < 0 else code  # killed as when it loses the connection
        lost = "ssh lost the connection" if self.code == 255 and self.connected else ""
        self.reason = lost or self.reason or f"its last line: {self.lines[-1]}"
        self.news.put(self)

    def send(self, text: str) -> None:
        """Send a line: `end` lets the processes save and end, `kill` ends them, "" shows that this program lives."""
        if text in ("end", "kill") and not self.connected:
            self.ssh.terminate()
        assert self.ssh.stdin is not None
        with suppress(OSError):  # ssh has ended
            self.ssh.stdin.write(os.fsencode(f"{text}\n"))
            self.ssh.stdin.flush()


class Job:
    """A script on its nodes.  ValueError if the file is no such script, or for another number of nodes."""

    def __init__(self, file: Path, hosts: Sequence[str]) -> None:
        script = file.read_text(encoding="utf-8")
        if (sizes := _NODES.match(script)) is None:
            raise ValueError(f"{file} is no torchrun script for several nodes; `render-job torchrun` writes one")
        self.least, most = int(sizes[1] or sizes[2]), int(sizes[2])
        if not self.least <= len(hosts) <= most:
            limits = most if self.least == most else f"{self.least} to {most}"
            raise ValueError(f"{file} is for {limits} nodes, not {len(hosts)}")
        self.news: SimpleQueue[Node | int] = SimpleQueue()  # a node that has ended, or a signal
        for number in _SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                signal.signal(number, lambda number, _: self.news.put(number))
        self.nodes = [Node(host, text, self.news) for host, text in _texts(script, file.name, hosts)]
        self.running = list(self.nodes)
        self.first: Node | None = None  # that failed
        self.signal = 0

    def run(self) -> int:
        """Wait until all nodes have ended, and return the exit code."""
        no_shell_at = time.monotonic() + 90
        while self.running:
            with suppress(Empty):
                news = self.news.get(timeout=1)
                self._ended(news) if isinstance(news, Node) else self._interrupted(news)
            for node in self.running:
                node.send("")
                if not node.connected and time.monotonic() > no_shell_at:
                    node.reason = "no shell within 90 s: does ~/.bashrc there wait for something?"
                    node.send("end")
        if self.first is not None:
            found = why("\n".join(line for node in self.nodes for line in node.lines))
            by_node = f"{self.first.name} failed first: exit code {self.first.code}; {self.first.reason}"
            _say(f"render-job: {found if found.startswith('first failure: rank') else by_node}")
            return self.first.code or 1
        if self.signal and any(node.code for node in self.nodes):
            _say(f"render-job: {_SIGNALS[self.signal]} ended {' '.join(node.name for node in self.nodes)}")
            return 128 + self.signal
        return 0

    def _ended(self, node: Node) -> None:
        self.running.remove(node)
        if node.code == 0 or self.first is not None or self.signal:
            return
        if node is not self.nodes[0] and sum(one.code == 0 for one in self.nodes) >= self.least:
            _say(f"render-job: {node.name} failed: exit code {node.code}; {node.reason}; the other nodes go on")
            return
        self.first = node
        self._end("end")

    def _interrupted(self, number: int) -> None:
        if self.first is None and not self.signal:
            self.signal = number
            _say(f"render-job: {_SIGNALS[number]}: the nodes save and end; another Ctrl-C kills them")
            self._end("end")
        elif number == signal.SIGINT:
            self._end("kill")

    def _end(self, word: str) -> None:
        for node in self.running:
            node.send(word)


def _texts(script: str, name: str, hosts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each host with what bash reads there."""
    folder = check_output(["pwd", "-L"], text=True).removesuffix("\n")  # a link may lead elsewhere on another machine
    master = os.environ.get("MASTER_ADDR")
    called = found[1] if (found := _HOST.match(script)) else "{node}"
    names = [master] if master else [called.replace("{node}", host.rpartition("@")[2]) for host in hosts]
    exported = {key: os.environ[key] for key in ("PATH", *_SECRET.findall(script)) if key in os.environ}
    for number, host in enumerate(hosts):
        exported |= {"NODE_RANK": str(number), "MASTER_ADDR": names[0], "OTHER_NODE": names[0 if number else -1]}
        values = exported | {"folder": folder, "name": name, "script": script, "start": f"{time.time_ns()}.{number}"}
        assigned = "".join(f"{key}={shlex.quote(value)}\n" for key, value in values.items())
        yield host, f"{assigned}export {' '.join(exported)}\n{(TEMPLATES / '_on_a_node.sh').read_text()}"


def _say(line: str) -> None:
    try:
        sys.stdout.buffer.write(os.fsencode(f"{line}\n"))
        sys.stdout.flush()
    except OSError:  # the terminal or the reader is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        os.kill(os.getpid(), signal.SIGHUP)
