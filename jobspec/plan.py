"""Turn a job into a plan: how many processes there are, where each rank is and what starts it.  No shell text."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress, zip_longest
from pathlib import PurePosixPath
from typing import Literal

from jobspec.spec.job import Job
from jobspec.spec.keys import keys
from jobspec.spec.mounts import normal
from train.config import to_argv

# Below 30000, because Kubernetes gives services node ports from there on, and Linux gives clients ports from 32768 on.
PORTS = range(20000, 30000)

# Keys that say which processes there are, how they meet and restart; a target subtracts what it cannot carry out.
PROCESSES = (
    keys("name nodes.min nodes.max procs_per_node device train command no_python watch sweep setup workdir env secrets")
    | keys("resources.cpus max_restarts")
    | keys("backend port timeout", "rendezvous")
)

# What every target with containers does with its processes.
IN_CONTAINERS = PROCESSES | keys(
    "gpus_per_node image files mounts preemption preemption.grace resources.memory resources.shm resources.rdma"
)

# What every target with a scheduler asks it for.
TOPOLOGY = keys("topology topology.required topology.preferred topology.segment")

# How long nodes wait for the last one, unless the spec says otherwise; torchrun's default for static.
RENDEZVOUS_TIMEOUT_S = 900
OF_PODS_S = 3600  # the last one's node may have to be added, and its image pulled, first

# Size of /dev/shm in a container, unless the spec sets it.  The default of 64 MiB is too small for DataLoader workers
# and NCCL.  This is a limit, not a reservation.
_SHM_PER_PROCESS = 1 << 30


def container_shm(job: Job) -> int:
    """Return the bytes of /dev/shm in a container that does not use the host's."""
    return job.resources.shm or job.procs_per_node * _SHM_PER_PROCESS


@dataclass(frozen=True)
class Rank:
    """One process: its number in the job, its node, its number on the node and what it computes on."""

    rank: int
    node: int
    local_rank: int
    device: str


@dataclass(frozen=True)
class Point:
    """One combination of a sweep: the words and variables that it adds to what all combinations share."""

    words: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True)
class Plan:
    """Everything that each target must carry out in its own way.

    `program` is what each process runs: a script, `-m` and a module, or with no_python any program; then arguments.
    `env` holds the variables of all processes by name.  Secrets are not in it: their values come from elsewhere.
    Nodes wait `rendezvous_timeout_s` seconds for the last one.
    `points` are the combinations of a sweep that is one job array; `program` and `env` then hold what they share.
    An elastic job is planned at its largest: `ranks()` counts `nodes.max` nodes.
    """

    job: Job
    backend: Literal["static", "c10d"]
    port: int
    rendezvous_timeout_s: int
    program: tuple[str, ...]
    env: Mapping[str, str]
    points: tuple[Point, ...] = ()

    @property
    def notes(self) -> list[str]:
        """Return what the head of the artifact says about defaults that follow from other keys, and what they need."""
        needed = ["watch needs the package of render-job where the processes run."] if self.job.watch else []
        if self.job.nodes.elastic and "max_restarts" not in self.job.model_fields_set:
            default = f"max_restarts is {self.job.max_restarts}, its default where nodes is a range"
            return [f"{default}; the torchrun of each node counts its own restarts.", *needed]
        return needed

    @property
    def torchrun_program(self) -> tuple[str, ...]:
        """Return the program as the last words of a torchrun command.

        torchrun's parser looks at these words too: it drops a first `--`, and fails at a word like `--log`, which
        could be short for two of its options.  After a `--` that we add, it takes every word unchanged.  No flag of
        train needs that.

        torchrun then expands every word as a template, including the script's name: `${local_rank}` becomes the
        rank, and `$$` becomes `$`.  So each `$` is doubled.
        Source: torch/distributed/elastic/utils/api.py, `macros.substitute`.
        """
        words = self.program
        if self.job.no_python:
            # torchrun does not expand the program's name.
            return ("--no-python", "--", words[0], *for_torchrun(words[1:]))
        if self.job.train is None:
            split = 1 if words[0] == "-m" else 0
            words = (*words[:split], "--", *words[split:])
        return for_torchrun(words)

    def ranks(self) -> Iterator[Rank]:
        """Yield every process in the order of ranks: node 0 has the first procs_per_node."""
        for rank in range(self.job.world_size):
            node, local_rank = divmod(rank, self.job.procs_per_node)
            device = "cpu" if self.job.device == "cpu" else f"cuda:{local_rank}"
            yield Rank(rank, node, local_rank, device)


def for_torchrun(words: Iterable[str]) -> tuple[str, ...]:
    """Return the words of a program as torchrun must get them; `Plan.torchrun_program` says why."""
    return tuple(word.replace("$", "$$") for word in words)


def make_plan(job: Job, rendezvous_timeout_s: int = RENDEZVOUS_TIMEOUT_S, hides_the_node: bool = False) -> Plan:
    """Make the plan of a job that breaks no rule; the timeout counts if the spec sets none, for the rest see Target."""
    # By the port that follows from its name, a job very likely keeps apart from others.
    number = int.from_bytes(hashlib.sha256(job.name.encode()).digest()[:8], "big")
    program: Sequence[str] = job.command or ()
    if job.watch is not None:
        program = ("-m", "jobspec.watch", str(job.watch), *program)
    # Some runtimes mount in the order of the list, and a mount over the parent of an earlier one would hide that one.
    mounts = sorted(job.mounts, key=lambda mount: len(PurePosixPath(normal(mount.path)).parts))
    if job.train is not None:
        program = ("-m", "train", *to_argv({"device": job.device, **job.train.model_dump(exclude_unset=True)}))
    return Plan(
        job=job.model_copy(update={"mounts": mounts}),
        backend=job.rendezvous.backend or ("c10d" if job.nodes.elastic else "static"),
        port=PORTS[number % len(PORTS)] if job.rendezvous.port == "auto" else job.rendezvous.port,
        rendezvous_timeout_s=job.rendezvous.timeout or rendezvous_timeout_s,
        program=tuple(program),
        env=dict(sorted({**_defaults(job, hides_the_node), **job.env}.items())),
    )


def as_array(plans: Sequence[Plan]) -> Plan:
    """Merge plans into a job array's plan, one task each; they may differ in settings of train and in variables."""
    # By position: a command may have a word twice.
    shared = [len(set(words)) == 1 for words in zip_longest(*(plan.program for plan in plans))]
    env = {name: value for name, value in plans[0].env.items() if all(plan.env.get(name) == value for plan in plans)}
    points = tuple(
        Point(
            tuple(word for word, is_shared in zip(plan.program, shared, strict=False) if not is_shared),
            {name: value for name, value in plan.env.items() if name not in env},
        )
        for plan in plans
    )
    return replace(plans[0], program=tuple(compress(plans[0].program, shared)), env=env, points=points)


def _defaults(job: Job, hides_the_node: bool) -> dict[str, str]:
    """Variables that every target sets unless the spec does."""
    env = {
        "PYTHONUNBUFFERED": "1",  # output is in the log even if the process is then killed
        # Without it a restart may read addresses of the attempt that died, and hang (pytorch#135712).
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    if job.train is not None:
        # Otherwise Python (from 3.11 on) would run a train.py or train/ of the working folder in place of our package.
        env["PYTHONSAFEPATH"] = "1"
    if job.resources.cpus is not None:
        env["OMP_NUM_THREADS"] = str(max(1, job.resources.cpus // job.procs_per_node))
    elif job.procs_per_node > 1:
        # The value that torchrun would choose, but without its warning.  A lone process uses all cores.
        env["OMP_NUM_THREADS"] = "1"
    if job.device == "cuda":
        # Each rank writes its last collectives to a file when one of them times out.  Every torch since 2.6 reads these
        # names.  From 2.8 on, TORCH_FR_BUFFER_SIZE and TORCH_FR_DUMP_TEMP_FILE win over them, so a spec may set either.
        # torch creates no folder for the file, and appends the rank to its name.
        # Source: torch/csrc/distributed/c10d/FlightRecorder.hpp and FlightRecorder.cpp.
        env["TORCH_NCCL_TRACE_BUFFER_SIZE"] = "2000"  # collectives; the default of torch 2.6 to 2.10 is none
        env["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "1"
        mounts = [mount for mount in job.mounts if mount.volume in (None, "claim") and not mount.read_only]
        folder = mounts[0].path.rstrip("/") if mounts and hides_the_node else "/tmp"
        env["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] = f"{folder}/{job.name}-nccl-rank-"
        if job.resources.rdma:
            env["NCCL_NET"] = "IB"  # without it NCCL falls back to TCP, and reports that only with NCCL_DEBUG
    return env
