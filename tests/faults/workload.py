"""The workload: a small job, started as its user starts it, on this machine or on two nodes within it."""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import yaml

from jobspec.artifact import render
from tests.cli import HANG_S, ROOT, environment
from tests.e2e.slurm.machine import Machine, connect
from tests.faults.rows import Fault

STEPS, BATCH = 12, 20
_SETTINGS: dict[str, object] = {
    **{"model": "mnist_cnn", "dataset": "mnist", "batch_size": BATCH, "epochs": 1, "momentum": 0.9, "log_every": 1},
    **{"logical_world": 4, "checkpoint_every": 4, "resume": "auto"},
    **{"collective_timeout_s": 100, "rendezvous_timeout_s": 300},
}
_FOLDERS = {"data_root": "data", "run_dir": "run", "checkpoint_dir": "checkpoints"}
_PORT = 20124
AN_HOUR_AHEAD = {"LD_PRELOAD": "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1", "FAKETIME": "+1h"}


class Job:
    """A job in a folder.  Each start adds to `lines`, with the time at which the line came."""

    def __init__(self, folder: Path, data: Path, fault: Fault | None = None) -> None:
        self.folder, self.fault = folder, fault
        self.nodes: list[Machine] = []
        self.lines: list[tuple[float, str]] = []
        self._more = threading.Condition()
        shutil.copytree(data, folder / "data")
        (folder / "checkpoints").mkdir()
        for name in ("asks", "answers"):
            os.mkfifo(folder / name)

    def start(self, processes: int, **train: object) -> list[subprocess.Popen[str]]:
        """Start the rendered script: on this machine."""
        script = self._script({"nodes": 1, "procs_per_node": processes}, train)
        return [self._process(["bash", script])]

    def start_on_nodes(self, torchrun: bool, clock: bool, **train: object) -> list[subprocess.Popen[str]]:
        """Start it on each node, or a rank without torchrun; with `clock` that of node 1 is wrong."""
        rendezvous = {"port": _PORT, "timeout": "100s"}
        words = ["bash", self._script({"nodes": 2, "procs_per_node": 1, "rendezvous": rendezvous}, train)]
        if not torchrun:
            flags = [f"--{name.replace('_', '-')}={value}" for name, value in self._settings(train).items()]
            words = [sys.executable, "-m", "train", *flags]
        of_ranks = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_PORT": str(_PORT)}
        started = []
        for number, node in enumerate(self.nodes[:2]):
            env = {"NODE_RANK": str(number), "MASTER_ADDR": "node0"} | (AN_HOUR_AHEAD if clock and number else {})
            env |= {} if torchrun else of_ranks | {"RANK": str(number)}
            started.append(self._process(node.inside(words, ROOT), **env))
        return started

    def _settings(self, train: dict[str, object]) -> dict[str, object]:
        return _SETTINGS | {key: str(self.folder / name) for key, name in _FOLDERS.items()} | train

    def _script(self, shape: dict[str, object], train: dict[str, object]) -> str:
        spec = {"name": "faulty", "device": "cpu", "max_restarts": 1, "env": {"OMP_NUM_THREADS": "1"}, **shape}
        (self.folder / "job.yaml").write_text(yaml.safe_dump({**spec, "train": self._settings(train)}))
        (self.folder / "job.sh").write_text(render("torchrun", str(self.folder / "job.yaml")))
        return str(self.folder / "job.sh")

    def _process(self, words: list[str], **more: str) -> subprocess.Popen[str]:
        env = environment(FAULT_FOLDER=str(self.folder), PYTHONUNBUFFERED="1", **more)
        env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
        env["PYTHONPATH"] = f"{Path(__file__).parent}:{env['PYTHONPATH']}"  # for sitecustomize.py
        if self.fault is not None:
            env["FAULT"] = json.dumps(asdict(self.fault))
        process = subprocess.Popen(
            words,
            cwd=ROOT,
            env=env,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        threading.Thread(target=self._read, args=(process,), daemon=True).start()
        return process

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with self._more:
                self.lines.append((time.time(), line))
                self._more.notify()

    def wait_until_it_says(self, pattern: str) -> None:
        with self._more:
            assert self._more.wait_for(lambda: re.search(pattern, self.said), HANG_S), self.said

    def wait_for_a_step(self) -> None:
        """Return when the start that has just begun has trained a step, or nothing was left to train."""
        with self._more:
            before = len(self.lines)
            new = re.compile("  step |done after")
            assert self._more.wait_for(lambda: any(new.search(s) for _, s in self.lines[before:]), HANG_S), self.said

    @property
    def said(self) -> str:
        return "".join(line for _, line in self.lines)

    def ends(self, processes: list[subprocess.Popen[str]], alone: bool = True) -> list[int]:
        """The exit codes; fails if a process is left of the job after the limit, unless another start runs."""
        deadline = time.monotonic() + HANG_S
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        while alone and (left := self.left()):
            assert time.monotonic() < deadline, f"left after {HANG_S:g} s: {left}: {self.said}"
            with suppress(OSError):
                select.select([os.pidfd_open(left[0])], [], [], max(0.0, deadline - time.monotonic()))
        return [process.returncode for process in processes]

    def left(self) -> list[int]:
        """The processes of the job that run, wherever they stand in the tree of processes."""
        found = []
        for file in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if f"\0FAULT_FOLDER={self.folder}\0".encode() in b"\0" + file.read_bytes():
                    found.append(int(file.parent.name))
        return found

    def clear_away(self) -> None:
        for pid in self.left():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        subprocess.run(["umount", "-q", self.folder / "checkpoints"], stderr=subprocess.DEVNULL)

    def wait_for_question(self) -> None:
        pipe = os.open(self.folder / "asks", os.O_RDONLY | os.O_NONBLOCK)
        assert select.select([pipe], [], [], HANG_S)[0] and os.read(pipe, 1), self.said
        os.close(pipe)

    def answer(self) -> None:
        (self.folder / "answers").write_text("!")

    @contextmanager
    def machines(self, knows_node0: bool) -> Iterator[None]:
        """Two nodes, and as the third machine the network between them; node 1 may not know node 0's name."""
        with ExitStack() as stack:
            for name in ("node0", "node1", "network"):
                hosts = self.folder / f"hosts-{name}"
                known = knows_node0 or name != "node1"
                hosts.write_text("127.0.0.1 localhost\n" + "10.78.0.10 node0\n" * known)
                self.nodes.append(stack.enter_context(Machine(name, hosts)))
            network = self.nodes[2]
            network.run("ip", "link", "add", "lan", "type", "bridge")
            network.run("ip", "link", "set", "lan", "up")
            for number, node in enumerate(self.nodes[:2]):
                connect(network, "lan", node, f"10.78.0.1{number}/24")
            yield

    def take_port(self) -> subprocess.Popen[bytes]:
        """Listen at the rendezvous port of node 0."""
        server = f"s = socket.create_server(('', {_PORT}))"
        listens = f"import socket\n{server}\nopen('asks', 'w').write('?')\nwhile 1: s.accept()"
        program = subprocess.Popen(self.nodes[0].inside([sys.executable, "-c", listens], self.folder))
        self.wait_for_question()
        return program
