"""`render-job why` finds the first failure in torchrun's own tables, whatever the order in which nodes report."""

import re
from pathlib import Path

import pytest
import yaml
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from jobspec.why import why
from tests.command_line import command_line

_CLOSED = "[rank{}]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:123\n"
_IMPORT = "ModuleNotFoundError: No module named 'mine'"
_MEMORY = ": killed: its memory limit (see resources.memory), its grace period, or a person"
_ENDED_TOO = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 192 got signal: 15\n"
# What torchrun's agents print when one of them does not come to node 0's store.
_GONE = "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?"
_LATE = (
    "[W1128 10:09:40.325 TCPStore.cpp:138] [c10d] recvValueWithTimeout failed on SocketImpl(fd=3, "
    f"addr=[{{}}]:44592, remote=[n0.net]:20001): {_GONE}\ntorch.distributed.DistNetworkError: {_GONE}\n"
)
_JOINED = "torch.distributed.DistStoreError: Timed out after 91 seconds waiting for clients. 3/4 clients joined.\n"
_SRUN = "".join(f"srun: error: n{node}: task {node}: Terminated\n" for node in range(4))
_LOOK = ": the others were late: look at their disks and network, or raise rendezvous.timeout"
_INSTALL = ": install it where the job runs (image, setup), or set workdir"


def _table(host: str, codes: dict[int, int], message: str = r"\g<0>") -> str:
    failures = {rank: ProcessFailure(rank, 77, code, "") for rank, code in codes.items()}
    text = re.sub("To enable traceback.*", message, str(ChildFailedError("mine.py", failures)))
    return re.sub(r"(?<=host      : ).*", host, text)


# Node n0 reports first, and within the same second, although rank 2 on n1 is the cause.
_PEERS = _CLOSED.format(0) + _CLOSED.format(1) + _table("n0", {0: 1, 1: 1})


_CASES: dict[str, tuple[str, str]] = {
    "SIGKILL": (
        _PEERS + _table("n1", {2: -9}),
        f"rank 2 on n1 ended with -9 (SIGKILL){_MEMORY}",
    ),
    "oom": (
        _PEERS + _table("n1", {2: -9}) + "slurmstepd: error: Detected 1 oom_kill event in StepId=3.0.\n",
        "rank 2 on n1 ended with -9 (SIGKILL): out of memory: more resources.memory, or a smaller batch",
    ),
    "SIGSEGV": (
        _PEERS + "forcefully exiting via SIGKILL\n" + _table("n1", {2: -11, 3: -15}),
        'rank 2 on n1 ended with -11 (SIGSEGV): a library crashed: env: {PYTHONFAULTHANDLER: "1"} shows where',
    ),
    "exception": (
        _PEERS + "[rank2]: ValueError: nan\n" + _table("n1", {2: 1}),
        "rank 2 on n1 ended with 1: ValueError: nan",
    ),
    "import on one": (
        f"[rank2]: {_IMPORT}\n" + _PEERS + _table("n1", {2: 1}),
        f"rank 2 on n1 ended with 1: {_IMPORT}{_INSTALL}",
    ),
    "a node did not come": (
        _LATE.format("n1.net") + _JOINED + _LATE.format("n3.net") + _SRUN,
        f"3 of 4 processes met, none on n2{_LOOK}",
    ),
    "who came is not known": (_LATE.format("n1") + _JOINED + _SRUN, f"3 of 4 processes met{_LOOK}"),
    "only addresses": (
        _LATE.format("10.0.0.1") + _LATE.format("11.0.0.3") + _JOINED + _SRUN,
        f"3 of 4 processes met{_LOOK}",
    ),
    "import before the ranks meet": (
        f"{_IMPORT}\n{_ENDED_TOO}{_PEERS}" + _table("n1", {2: 1}),
        f"rank 2 on n1 ended with 1: {_IMPORT}{_INSTALL}",
    ),
    "import on all": (
        f"{_IMPORT}\n" * 3 + _table("n0", {0: 1, 1: 1}) + _table("n1", {2: 1}),
        f"ranks 0, 1, 2 ended with 1: {_IMPORT}{_INSTALL}",
    ),
    "wrong path": (
        "python: can't open file '/app/mine.py': [Errno 2] No such file or directory\n" + _table("n1", {2: 2}),
        "rank 2 on n1 ended with 2: python: can't open file '/app/mine.py': [Errno 2] No such file or directory: "
        "that path does not exist there: see workdir, files, mounts",
    ),
    "NCCL": (
        "[rank0]: ncclRemoteError: A call failed possibly due to a network error\n"
        "[rank2]: ncclUnhandledCudaError: Call to CUDA function failed.\n[rank2]: Cuda failure 2 'out of memory'\n"
        + _table("n0", {0: 1})
        + _table("n1", {2: 1}),
        "rank 2 on n1 ended with 1: Cuda failure 2 'out of memory': the memory of a GPU is full: a smaller batch",
    ),
    "traceback of an error file": (
        _PEERS + _table("n1", {2: 1}, "Traceback (most recent call last):\n  KeyError: 'x'\n"),
        "rank 2 on n1 ended with 1: KeyError: 'x'",
    ),
    "error file": (_PEERS + _table("n1", {2: 1}, "rank 3 hangs"), "rank 2 on n1 ended with 1: rank 3 hangs"),
    "lost node": (
        _PEERS + "slurmstepd: error: *** JOB 3 ON n0 CANCELLED DUE TO NODE FAILURE ***\n",
        "not in these logs: their ranks ended because another process or its node had: "
        "Slurm took a node, or a node is lost: the key preemption lets the job be requeued",
    ),
    "a node without a table": ("[rank2]: ValueError: nan\n" + _PEERS, "rank 2: ValueError: nan"),
    "a later start": (_table("n1", {2: -9}) + f"requeueing the job\n{_IMPORT}\n", f"{_IMPORT}{_INSTALL}"),
    **yaml.safe_load(Path(__file__).with_name("why.yaml").read_text()),
}


@pytest.mark.parametrize("name", _CASES)
def test_the_first_failure_is_named_and_not_what_follows_from_it(name: str) -> None:
    text, sentence = _CASES[name]
    # kubectl describe has no prefixes.
    for prefix in ("", "[pod/job-0/node] ", "job-0  | ", "0: ")[: 1 if "Namespace:" in text else None]:
        assert why("".join(f"{prefix}{line}\n" for line in text.splitlines())) == f"first failure: {sentence}"


def test_several_logs_are_read_as_one(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("epoch 1: loss 0.3\n")
    (tmp_path / "b.log").write_bytes(b"\xff\nValueError: \x07[1m\n")
    assert command_line("why", "a.log", cwd=tmp_path).stdout == b"no failure is named here\n"
    assert (
        command_line("why", "a.log", "b.log", cwd=tmp_path).stdout.decode() == "first failure: ValueError: \ufffd[1m\n"
    )
