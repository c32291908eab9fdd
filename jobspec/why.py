"""Why a job failed: the rank that ended first, and its error, from what the nodes and the scheduler have written.

torchrun prints a table on each node.  One failure makes other ranks fail with broken connections, often in the same
second, so each node's table blames a rank of its own.
"""

import re
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime

# One of torchrun's fields, after what kubectl, compose, srun or `render-job ssh` put before each line.
# Source: torch/distributed/elastic/multiprocessing/errors/__init__.py, ChildFailedError.
_FIELD = re.compile(r"^(.*?)  (time|host|rank|exitcode|traceback) *: (.*)$", re.MULTILINE)
_NAME = r"(?!torch\.distributed\.elastic)[A-Z_a-z][\w.]*(?:Error|Exception|Interrupt|Iteration|Expired)(?:: .+)?"
_OTHER = r"setup: this line failed: .+|\S+\.py: error: .+|\S+: can't open .+|Cuda failure .+|Error response from .+"
_ERROR = re.compile(rf"^((?:\[[^]\n]*\]:? ?|\S+ *[:|] ){{0,4}}?) *({_NAME}|{_OTHER})$", re.MULTILINE)
# How a rank ends because another one has ended.
_FOLLOWS = re.compile(
    "Connection (closed|reset|refused)|Broken pipe|DistStore|remote process|ncclRemote|[Ff]ailed to recv"
)
# How srun, compose and NCCL's RAS name a process that has no table.  A torchrun ends with 1 or 15, also where its ranks
# follow.
_TASK = r"\S+: tasks? \S+: (?!Terminated|.* exit code 1\n).+"
_PROCESS = re.compile(rf"{_TASK}|\S+ exited with code (?!0\n|1\n).+|Process \d+ on node .+ GPU.+")
# The pods in `kubectl describe pods`, and of each container what it waits for, or how and when it ended.
_POD = re.compile(r"^Name: +(\S+)\nNamespace: .*\n(?:.*\n)*?Node: +([^\s/]+)", re.MULTILINE)
_WAITS = r"Waiting\n +Reason: +(?!ContainerCreating|PodInitializing|CrashLoopBackOff)(\w+)"
_CONTAINER = re.compile(rf"{_WAITS}|Terminated\n +Reason: +(\w+)\n(?s:.*?)Exit Code: +(\d+)\n(?s:.*?)Finished: +(.+)")
# Bytes used and allowed, as slurmstepd says.
_MEMORY = re.compile(r"exceeded memory limit \((\d+) > (\d+)\)")
# What an error or an exit code says, and what to change; then what the scheduler does.  The first that is found counts.
_OF_ERRORS = {
    "CUDA out of memory|OutOfMemoryError|Cuda.*out of memory": "the memory of a GPU is full: a smaller batch",
    "allocate memory|signal: Killed": "out of memory: more resources.memory, or a smaller batch",
    "No space left|Bus error|SIGBUS": "a disk is full, or /dev/shm: see resources.shm",
    "No module named": "install it where the job runs (image, setup), or set workdir",
    "No such file": "that path does not exist there: see workdir, files, mounts",
    "EADDRINUSE|ddress already in use|port in use": "another process has it: see rendezvous.port if it is the job's",
    "Timed out waiting": "a rank hangs: the key watch names it",
    "SIGSEGV|SIGABRT|code 139|core dumped": 'a library crashed: env: {PYTHONFAULTHANDLER: "1"} shows where',
    "SIGKILL|Killed|code 137": "killed: its memory limit (see resources.memory), its grace period, or a person",
}
_OF_OTHERS = {
    "(?i)oom.?kill|out.of.me|exceeded memory limit": "out of memory: more resources.memory, or a smaller batch",
    "torchrun\\W.*(not found|No such file)": "torchrun is not there: see image, setup",
    "collective operation timeout": "a rank hangs: the key watch names it",
    "TIME LIMIT|DeadlineExceeded": "it ran out of time: see time_limit",
    "(?i:node.fail)|PREEMPT": "Slurm took a node, or a node is lost: the key preemption lets the job be requeued",
    "NodeNotReady|TaintManager": "a node is lost: with the key preemption new pods resume the job",
    "ErrImage|ImagePullBackOff|import docker image|Unable to handle docker|initializing source": (
        "a node cannot pull the image: look at its name, and at the node's access to the registry"
    ),
    "Evicted": "the kubelet evicted the pod, and `kubectl describe` says why: see resources, mounts",
    "clients joined": "the others were late: look at their disks and network, or raise rendezvous.timeout",
    "communicator data from": "it does not answer NCCL: it is stopped or dead, or its node is",
}


def why(text: str) -> str:
    """Return a sentence about the first failure in the text: rank, node, exit code, error and what to change."""
    text = re.sub(r"\x1b\[[\d;]*[A-Za-z]", "", text.rpartition("requeueing the job\n")[2] or text)
    errors = [(re.sub(r".*\[rank(\d+)\].*|.*", r"\1", prefix), error) for prefix, error in _ERROR.findall(text)]
    ended = sorted(_ended(text, dict(errors)))
    rank, error = next((found for found in errors if not _FOLLOWS.search(found[1])), ("", ""))
    what = f"rank {rank}" if rank else ""
    if ended and not ended[0][0]:
        *_, first, host, code, error = ended[0]
        ranks = sorted({rank for *_, rank, _, at, how in ended if (at, how) == (code, error)})
        who = f"rank {first} on {host}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
        what = f"{who} ended with {code}"
    elif process := not rank and (_absent(text) or _process(text) or _laggards(text)):
        what = process
    elif (ended or errors) and not error:
        what = "not in these logs: their ranks ended because another process or its node had"
    if memory := _MEMORY.search(text):
        what += f"{', ' * bool(what)}{int(memory[1]) / 2**30:.1f} of {int(memory[2]) / 2**30:.1f} GiB"
    places = [(error, _OF_ERRORS)] if error else [(text, _OF_OTHERS), (what, _OF_ERRORS)]
    found = (remedy for place, remedies in places for words, remedy in remedies.items() if re.search(words, place))
    known = [part for part in (what, error, next(found, "")) if part]
    return f"first failure: {': '.join(known)}" if known else "no failure is named here"


def _ended(text: str, errors: Mapping[str, str]) -> Iterator[tuple[bool, str, bool, int, str, str, str]]:
    """Yield of each process in a table: whether it followed another, time, without a cause, rank, host, code, error."""
    tables = dict[str, dict[str, str]]()
    for prefix, name, value in _FIELD.findall(text):
        table = tables.setdefault(prefix, {})
        table[name] = value
        if name == "traceback" and len(tables.pop(prefix)) == 5:  # the kubelet may have cut the first one
            rank, number = table["rank"].split()[0], table["exitcode"].split()[0]
            own = "" if value.startswith(("To enable traceback", "Signal ", "Traceback ")) else value
            error = own or (errors.get(rank, errors.get("", "")) if int(number) > 0 else "")
            code = " ".join([number, *re.findall(r"\(SIG\w+\)", value)])
            follows = "SIGTERM" in code or bool(_FOLLOWS.search(error))
            yield follows, table["time"], not error and int(number) > 0, int(rank), table["host"], code, error


def _absent(text: str) -> str:
    """Return how many processes met on torch's store, and of which of Slurm's nodes none did.

    Nodes are named if all processes that met wrote their connection, which names their node.
    """
    if not (found := re.search(r"(\d+)/(\d+) clients joined", text)):
        return ""
    met = f"{found[1]} of {found[2]} processes met"
    clients = {*re.findall(r"addr=\[([^].]+)[^]]*\]:(\d+), remote=\[([^].]+)", text)}
    here = {host for client in clients for host in client[::2]}
    nodes = {*re.findall(r"srun: error: (\S+): task \d+:", text)}
    complete = len(clients) == int(found[1]) - 1 and here <= nodes  # the store's own process writes none
    return f"{met}, none on {', '.join(sorted(nodes - here))}" if complete and nodes - here else met


def _process(text: str) -> str:
    """Return how the first process without a table ended."""
    if found := _PROCESS.search(text):
        return found[0]
    pods, parts = [], _POD.split(text)[1:]
    for name, node, pod in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        for waits, reason, code, end in _CONTAINER.findall(pod):
            if code not in ("0", "1", "143") or reason == "OOMKilled":
                how = f"exited with code {code} ({reason})" if code else f"waits: {waits}"
                pods.append((parsedate_to_datetime(end).timestamp() if end else 0, f"pod {name} on {node} {how}"))
    return min(pods, default=(0, ""))[1]


def _laggards(text: str) -> str:
    """Return which ranks have launched the fewest operations in an answer of `ncclras`."""
    for part in text.split("Communicator ranks have different ")[1:]:
        # A lone rank stands in the line of its number, several ranks below it.
        part = re.sub(r"Rank (\d+) has (launched up to operation \d+)", r"\2 Rank \1", part)
        words = re.split(r"launched up to operation (\d+)", part)[1:]
        counts = {int(number): ranks for number, ranks in zip(words[::2], words[1::2], strict=True)}
        if behind := re.findall(r"Rank (\d+) -- .+ on node (\S+)", counts[min(counts)] if counts else ""):
            who = ", ".join(f"rank {rank} on {node}" for rank, node in behind)
            return f"{who} launched {min(counts)} operations, others {max(counts)}: it hangs if that stays so"
    return ""
