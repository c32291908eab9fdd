"""Why a job failed: the rank that ended first, and its error, from what the nodes and the scheduler have written.

torchrun prints a table on each node.  One failure makes other ranks fail with broken connections, often in the same
second, so each node's table blames a rank of its own.
"""

import re
import signal
from collections.abc import Iterator, Mapping

# One of torchrun's fields, after what kubectl, compose, srun or `render-job ssh` put before each line.
# Source: torch/distributed/elastic/multiprocessing/errors/__init__.py, ChildFailedError.
_FIELD = re.compile(r"^(.*?)  (time|host|rank|exitcode|traceback) *: (.*)$", re.MULTILINE)
_ERROR = re.compile(r"^(?:.*?\[rank(\d+)\]: |.*?\s)?([A-Z_a-z][\w.]*(?:Error|Exception|Interrupt): .+)$", re.MULTILINE)
# How a rank ends because another one has ended.
_FOLLOWS = re.compile("Connection (closed|reset|refused)|Broken pipe|DistStoreError|ncclRemoteError")
# What an error says, and what to change; then what anybody else has written.  The first that is found counts.
_OF_ERRORS = {
    "CUDA out of memory|OutOfMemoryError": "the memory of a GPU is full: a smaller batch",
    "No space left": "a disk is full, or /dev/shm: see resources.shm",
    "No module named": "install it where the job runs (image, setup), or set workdir",
    "No such file": "that path does not exist there: see workdir, files, mounts",
    "EADDRINUSE|[Aa]ddress already in use|port in use": "another program has the port: see rendezvous.port",
}
_OF_OTHERS = {
    "(?i)oom.?kill|out.of.memory": "out of memory: more resources.memory, or a smaller batch",
    "can't open file": "that path does not exist there: see workdir, files, mounts",
    "TIME LIMIT|DeadlineExceeded": "it ran out of time: see time_limit",
    "NODE.FAIL|PREEMPT": "Slurm took a node, or a node is lost: the key preemption lets the job be requeued",
    "ErrImagePull|ImagePullBackOff|pull access denied": "a node cannot pull the image",
    "SIGKILL": "its memory limit or its grace period was over: see resources.memory",
}


def why(text: str) -> str:
    """Return a sentence about the first failure in the text: rank, node, exit code, error and what to change."""
    ended = sorted(_ended(text))
    what, error = "", next((found for _, found in _ERROR.findall(text)), "")
    if ended:
        follows, _, first, host, code, error = ended[0]
        ranks = sorted({rank for _, _, rank, _, *how in ended if how == [code, error]})
        who = f"rank {first} on {host}" if len(ranks) == 1 else f"rank {', '.join(map(str, ranks))}"
        what = f"{who} ended with {code}"
        if follows:
            what, error = "not in these tables: their ranks ended because another process or its node had", ""
    known = [part for part in (what, error, _remedy(_OF_ERRORS, error) if error else _remedy(_OF_OTHERS, text)) if part]
    return f"first failure: {': '.join(known)}" if known else "no failure"


def _ended(text: str) -> Iterator[tuple[bool, str, int, str, str, str]]:
    """Yield of each process in a table: whether it ended because of another, time, rank, host, exit code, error."""
    errors: dict[str, str] = dict(_ERROR.findall(text))
    tables = dict[str, dict[str, str]]()
    for prefix, name, value in _FIELD.findall(text):
        table = tables.setdefault(prefix, {})
        table[name] = value
        if name == "traceback":
            rank, number = table["rank"].split()[0], int(table["exitcode"].split()[0])
            own = "" if value.startswith(("To enable traceback", "Signal ", "Traceback ")) else value
            error = own or (errors.get(rank, errors.get("", "")) if number > 0 else "")
            code = re.sub(r"\(pid: \d+\) *", "", table["exitcode"]).strip()  # such as `-9 (SIGKILL)`
            follows = number == -signal.SIGTERM or bool(_FOLLOWS.search(error))
            yield follows, table["time"], int(rank), table["host"], code, error


def _remedy(remedies: Mapping[str, str], text: str) -> str:
    return next((remedy for words, remedy in remedies.items() if re.search(words, text)), "")
