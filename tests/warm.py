"""`torchrun` and `python3` that start in milliseconds: each is forked from a process that has imported torch.

What runs is torch's own code and the program's, with the arguments, environment, folder, streams and signals of the
process that was asked for; only the seconds that importing torch takes are spared.
"""

import contextlib
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Stands for the process: hands it signals, and ends as it does.  If this one is killed, so is the process.
_CLIENT = """
import json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
request = json.dumps([sys.argv, dict(os.environ), os.getcwd()]).encode()
socket.send_fds(server, [len(request).to_bytes(4, "big")], [0, 1, 2])
server.sendall(request)
pid = int.from_bytes(server.recv(4), "big")
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT):
    signal.signal(number, lambda number, _: os.kill(pid, number))
status = int.from_bytes(server.recv(4), "big", signed=True)
if status < 0:
    signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


@contextlib.contextmanager
def started() -> Iterator[Path]:
    """A folder with `torchrun` and `python3`, to be first on PATH; at the end nothing is left running."""
    folder = Path(tempfile.mkdtemp(prefix="warm-"))  # short, as the address of a socket has to be
    for name in ("torchrun", "python3"):
        (folder / name).write_text(f"#!{sys.executable} -IS\n{_CLIENT.format(address=str(folder / 'socket'))}")
        (folder / name).chmod(0o755)
    server = subprocess.Popen(
        [sys.executable, __file__, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert server.stdout is not None
        assert server.stdout.read(1) == b"+", "torch cannot be imported"
        yield folder
    finally:
        server.communicate()  # the end of its stdin is the end of the server
        shutil.rmtree(folder)


def _serve(folder: Path) -> tuple[str, list[str]]:
    """Fork for each request; return in the new process, with the program that it is and its arguments."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "socket"))
    listener.listen(64)
    os.write(1, b"+")
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    selector.register(listener, selectors.EVENT_READ)
    clients: dict[int, tuple[socket.socket, int, int]] = {}  # by file descriptor, the client's and the process's
    while True:
        for key, _ in selector.select():
            if key.fileobj == 0:
                for _, _, pid in clients.values():
                    os.kill(pid, signal.SIGKILL)
                os._exit(0)
            if key.fileobj is listener:
                client, _ = listener.accept()
                argv, env, cwd, streams = _request(client)
                pid = os.fork()
                if pid == 0:
                    _become(env, cwd, streams, [listener, client, *(one[0] for one in clients.values())], selector)
                    return Path(argv[0]).name, argv
                for stream in streams:
                    os.close(stream)
                client.sendall(pid.to_bytes(4, "big"))
                ended = os.pidfd_open(pid)
                for file in (client.fileno(), ended):
                    clients[file] = client, ended, pid
                    selector.register(file, selectors.EVENT_READ)
            elif key.fd in clients:
                client, ended, pid = clients[key.fd]
                if key.fd != ended:  # the client was killed
                    os.kill(pid, signal.SIGKILL)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                for file in (client.fileno(), ended):
                    del clients[file]
                    selector.unregister(file)
                with contextlib.suppress(OSError):
                    client.sendall(status.to_bytes(4, "big", signed=True))
                client.close()
                os.close(ended)


def _request(client: socket.socket) -> tuple[list[str], dict[str, str], str, list[int]]:
    size, streams, _, _ = socket.recv_fds(client, 4, 3)
    data = b""
    while len(data) < int.from_bytes(size, "big"):
        data += client.recv(1 << 16)
    argv, env, cwd = json.loads(data)
    return argv, env, cwd, streams


def _become(env: dict[str, str], cwd: str, streams: list[int], sockets: list[socket.socket], selector: Any) -> None:
    """Make a forked process what its client asked for."""
    selector.close()
    for one in sockets:
        one.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)


def _run(program: str, argv: list[str]) -> None:
    """What `torchrun ARGUMENTS` or `python3 [-u] [-m] PROGRAM ARGUMENTS` does."""
    sys.argv = argv
    if program == "torchrun":
        main()
        return
    words = [word for word in argv[1:2] if word != "-u"] + argv[2:]
    module = words[0] == "-m"
    sys.argv = words[module:]
    if module:
        sys.path[0] = str(Path.cwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    # What a program that trains imports sooner or later.
    from torch.distributed.run import main

    here = Path(sys.argv[1])
    sys.executable = str(here / "python3")  # with which torchrun starts its workers
    _run(*_serve(here))
