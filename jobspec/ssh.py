"""Start a torchrun script on several machines over ssh, and end it on all of them: at Ctrl-C, or when one fails."""

import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TextIO

_NODES = re.compile(r"^exec torchrun --nnodes=(\d+)(?::(\d+))? ", re.MULTILINE)
_SECRET = re.compile(r'^: "\$\{(\w+):\?', re.MULTILINE)
_FAILURE = re.compile(rb"failed \(exitcode: (-?\d+)\) local_rank: (\d+) ")  # torchrun's words
_CONNECTED = b"render-job: connected"
_SSH = ["ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=20", "--"]
_SHELL_WITHIN_S = 90
_ONE_FAILURE_S = 60  # in which a failure makes other processes fail

# What bash runs on a node.  It reads an empty line a second, and later perhaps the words `end` and `kill`.
_ON_A_NODE = """{
  cd "$folder" 2>/dev/null || { echo "no folder $folder here: all nodes need it, shared or as a copy"; exit 1; }
  kill_all() { # also the processes of a torchrun that was killed
    for file in $(grep -lsxzF "RENDER_JOB_START=$start" /proc/[0-9]*/environ); do
      file=${file%/environ}
      kill -KILL "${file##*/}"
    done
  } 2>/dev/null
  # Processes that save must be able to write lines when ssh, which takes them, is gone.
  exec 3<&0 4> >(trap "" PIPE; cat 2>/dev/null; exec cat >/dev/null)
  RENDER_JOB_START=$start bash -c "$script" "$name" </dev/null >&4 2>&1 3<&- 4>&- &
  agent=$!
  exec 4>&-
  {
    while read -rt 60 word && [[ -z $word ]]; do :; done
    kill "$agent"
    until [[ $word == kill ]] || ! read -rt 60 word; do :; done
    [[ $word != kill ]] || kill_all
  } <&3 >/dev/null 2>&1 &
  status=0
  wait "$agent" 2>/dev/null || status=$?
  kill "$!"
  kill_all
  exit "$status"
}
"""


class Node:
    """A machine, and the ssh that runs the script there."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text, self.connected = name, text, False
        self.last, self.failure, self.failed_at, self.code = "", "", -math.inf, 0
        # In a session of its own, ssh does not get the signals of the terminal.
        self.ssh = subprocess.Popen(
            [*_SSH, name, f"echo {shlex.quote(_CONNECTED.decode())}; exec bash -s"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def read(self, ended: "Callable[[Node], None]") -> None:
        """Show what the node writes, until it ends."""
        assert self.ssh.stdout is not None
        for line in self.ssh.stdout:
            text = line.rstrip(b"\r\n")
            if text == _CONNECTED:  # earlier, a ~/.bashrc that reads would swallow the script
                self.send(self.text)
                self.connected = True
                continue
            _write(sys.stdout, b"%s: %s\n" % (os.fsencode(self.name), text))
            self.last = text.decode(errors="replace") or self.last
            found, now = _FAILURE.search(text), time.monotonic()
            if found and now > self.failed_at + _ONE_FAILURE_S:
                self.failure, self.failed_at = f"local rank {int(found[2])} ended with {int(found[1])}", now
        code = self.ssh.wait()
        self.code = code if code >= 0 else 128 - code
        ended(self)

    def send(self, text: str) -> None:
        assert self.ssh.stdin is not None
        with suppress(OSError):  # ssh has ended
            self.ssh.stdin.write(os.fsencode(text))
            self.ssh.stdin.flush()

    def end(self) -> None:
        """Let its processes save and end."""
        if self.connected:
            self.send("end\n")
        else:
            self.ssh.terminate()

    @property
    def is_lost(self) -> bool:
        return self.connected and self.code == 255  # ssh's own code

    @property
    def reason(self) -> str:
        last = f"its last line: {self.last.rstrip('.')}" if self.last else "it wrote nothing"
        why = "ssh lost the connection" if self.is_lost else self.failure or last
        hint = "; log in by hand once, or see ssh-copy-id" if self.code == 255 and not self.connected else ""
        return f"exit code {self.code}; {why}{hint}"


class Job:
    """The script on all nodes."""

    def __init__(self, hosts: Sequence[str], texts: Sequence[str], least: int) -> None:
        self.least = least  # nodes with which it can go on
        self.news: SimpleQueue[Callable[[], None]] = SimpleQueue()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                signal.signal(number, lambda number, _: self.news.put(partial(self._interrupt, number)))
        self.nodes = [Node(host, text) for host, text in zip(hosts, texts, strict=True)]
        self.running = list(self.nodes)
        self.first: Node | None = None  # that failed
        self.signal, self.code, self.until = "", 0, math.inf

    def run(self) -> int:
        """Wait until all nodes have ended, and return the exit code."""
        for node in self.nodes:
            Thread(target=node.read, args=[lambda node: self.news.put(partial(self._ended, node))], daemon=True).start()
        no_shell_at = time.monotonic() + _SHELL_WITHIN_S
        while self.running and time.monotonic() < self.until:
            with suppress(Empty):
                self.news.get(timeout=1)()
            for node in self.running:
                node.send("\n")
                if not node.connected and time.monotonic() > no_shell_at:
                    node.failure = f"no shell within {_SHELL_WITHIN_S} s: does ~/.bashrc there wait for something?"
                    node.ssh.terminate()
        if self.running:
            _say(f"no answer from {_names(self.running)}; look there for processes that are left")
        if self.first is not None:
            _say(f"{self.first.name} failed first: {self.first.reason}")
            return self.first.code or self.code
        if self.signal and any(node.code for node in self.nodes):
            _say(f"{self.signal} ended {_names(self.nodes)}")
            return self.code
        return 0

    def _ended(self, node: Node) -> None:
        self.running.remove(node)
        if node.code == 0 or self.signal:
            return
        if self.first is not None:
            self.first = node if node.is_lost else self.first  # the others only felt it earlier
        elif node is not self.nodes[0] and sum(node.code == 0 for node in self.nodes) >= self.least:
            _say(f"{node.name} failed: {node.reason}; the other nodes go on")
        else:
            failed = [other for other in (node, *self.running) if time.monotonic() < other.failed_at + _ONE_FAILURE_S]
            self.first = node if node.is_lost else min(failed, key=lambda other: other.failed_at, default=node)
            self.code = node.code
            self._end()

    def _end(self) -> None:
        for node in self.running:
            node.end()

    def _interrupt(self, number: int) -> None:
        if self.first is None and not self.signal:
            self.signal = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
            self.code = 128 + number
            _say(f"{self.signal}: the nodes save and end; another Ctrl-C kills them")
            self._end()
        elif number == signal.SIGINT:
            self.until = time.monotonic() + 10
            for node in self.running:
                node.send("kill\n")


def start(file: Path, hosts: Sequence[str]) -> int:
    """Run a script on these machines, the first of which is node 0, and return the exit code."""
    script = file.read_text(encoding="utf-8")
    sizes, secrets = _NODES.findall(script), _SECRET.findall(script)
    if not sizes:
        return _refuse(f"{file} is no torchrun script for several nodes; `render-job torchrun JOB.yaml` makes one")
    least, most = int(sizes[-1][0]), int(sizes[-1][1] or sizes[-1][0])
    if not least <= len(hosts) <= most:
        needed = f"{least}" if least == most else f"{least} to {most}"
        return _refuse(f"{file} needs {needed} nodes, not {len(hosts)}: name each, node 0 first")
    if missing := [name for name in secrets if not os.environ.get(name)]:
        return _refuse(f"export {', '.join(missing)} before the start: secrets of this job")
    addresses = [host.rpartition("@")[2] for host in hosts]
    here = os.environ.get("PWD", "")  # without links resolved, which may lead elsewhere on another machine
    folder = here if here and Path(here).is_dir() and Path(here).samefile(".") else str(Path.cwd())
    common = {name: os.environ[name] for name in ("PATH", *secrets)}
    common["MASTER_ADDR"] = os.environ.get("MASTER_ADDR") or addresses[0]
    texts = []
    for number in range(len(hosts)):
        variables = common | {"NODE_RANK": str(number)}
        if number == 0 and len(hosts) > 1 and not os.environ.get("MASTER_ADDR"):
            variables["OTHER_NODE"] = addresses[1]
        values = {"folder": folder, "name": str(file), "script": script, "start": uuid.uuid4().hex}
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
        lines += [f"{name}={shlex.quote(value)}\n" for name, value in values.items()]
        texts.append("".join([*lines, _ON_A_NODE]))
    return Job(hosts, texts, least).run()


def _say(text: str) -> None:
    _write(sys.stderr, os.fsencode(f"render-job: {text}\n"))


def _write(stream: TextIO, line: bytes) -> None:
    try:
        stream.buffer.write(line)
        stream.flush()
    except OSError:  # the terminal or the reader is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        os.kill(os.getpid(), signal.SIGHUP)


def _refuse(text: str) -> int:
    _say(text)
    return 2


def _names(nodes: Sequence[Node]) -> str:
    return " ".join(node.name for node in nodes)
