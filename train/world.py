"""World: who this process is among all processes, read from the environment and from nowhere else.

`World.detect` is the only reader of RANK and its relatives.  It imports no torch, so a wrong environment is
reported at once; `train/process_group.py` opens the connections.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from train.errors import UserError


@dataclass(frozen=True)
class World:
    """One process among `world_size`; `rank` is global and `local_rank` counts within the node.

    `launcher` says who set the environment: torchrun, slurm (one task a process), pytorchjob (a pod without
    torchrun), environment (set by hand) or none (one process).
    `store_is_served` is true if the launcher already listens on master_port; otherwise rank 0 has to.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 0
    launcher: str = "none"
    store_is_served: bool = False
    attempt: int = 0

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> World:
        """Read the environment of torchrun, of a PyTorchJob pod, of a Slurm task, or of a single process.

        Raises UserError if variables are missing, are no numbers or contradict each other.
        Sources: torchrun's "Environment Variables"; the PyTorchJob controller's `setPodEnv`; srun(1) "OUTPUT
        ENVIRONMENT VARIABLES".
        """
        if "LOCAL_RANK" in environ:
            return cls._from_torchrun(environ)
        if "RANK" in environ:
            return cls._from_pytorchjob(environ)
        # A batch script has SLURM_PROCID=0 too; only a process that srun started has a step.
        if "SLURM_PROCID" in environ and "SLURM_STEP_ID" in environ:
            return cls._from_slurm(environ)
        return cls()

    @classmethod
    def _from_torchrun(cls, environ: Mapping[str, str]) -> World:
        rank, world_size, local_rank, master_port = _numbers(
            environ, "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT", also=("MASTER_ADDR",)
        )
        by_torchrun = "TORCHELASTIC_RUN_ID" in environ
        return cls(
            rank=rank,
            world_size=world_size,
            local_rank=local_rank,
            local_world_size=int(environ.get("LOCAL_WORLD_SIZE", world_size)),
            node_rank=int(environ.get("GROUP_RANK", environ.get("NODE_RANK", 0))),
            master_addr=environ["MASTER_ADDR"],
            master_port=master_port,
            launcher="torchrun" if by_torchrun else "environment",
            store_is_served=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            attempt=int(environ.get("TORCHELASTIC_RESTART_COUNT", 0)),
        )._checked()

    @classmethod
    def _from_pytorchjob(cls, environ: Mapping[str, str]) -> World:
        rank, world_size, master_port = _numbers(environ, "RANK", "WORLD_SIZE", "MASTER_PORT", also=("MASTER_ADDR",))
        per_node = environ.get("PET_NPROC_PER_NODE", "1")
        if per_node not in ("1", "auto"):
            raise UserError(
                f"RANK is {rank} but LOCAL_RANK is not set, and PET_NPROC_PER_NODE is {per_node}: a PyTorchJob sets "
                "RANK to the number of the node, not of the process. Start the program with torchrun, which reads "
                "the PET_ variables, or set nprocPerNode to 1"
            )
        return cls(
            rank=rank,
            world_size=world_size,
            node_rank=rank,
            master_addr=environ["MASTER_ADDR"],
            master_port=master_port,
            launcher="pytorchjob",
        )._checked()

    @classmethod
    def _from_slurm(cls, environ: Mapping[str, str]) -> World:
        rank, local_rank, node_rank, job = _numbers(
            environ, "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_JOB_ID"
        )
        # The step's own numbers; SLURM_NTASKS may be the allocation's.
        world_size = int(environ.get("SLURM_STEP_NUM_TASKS", environ.get("SLURM_NTASKS", "1")))
        tasks = environ.get("SLURM_STEP_TASKS_PER_NODE", environ.get("SLURM_TASKS_PER_NODE", str(world_size)))
        return cls(
            rank=rank,
            world_size=world_size,
            local_rank=local_rank,
            local_world_size=_expand_tasks_per_node(tasks)[node_rank],
            node_rank=node_rank,
            master_addr=environ.get("MASTER_ADDR") or _first_slurm_node(environ),
            # Below the ephemeral range (32768-60999), and different for jobs and steps that share a node.
            master_port=int(environ.get("MASTER_PORT", 10000 + (job * 31 + int(environ["SLURM_STEP_ID"])) % 20000)),
            launcher="slurm",
        )._checked()

    def _checked(self) -> World:
        if not 0 <= self.rank < self.world_size:
            raise UserError(
                f"RANK is {self.rank} and WORLD_SIZE is {self.world_size} ({self.launcher}): "
                f"ranks count from 0 to {self.world_size - 1}"
            )
        return self


def _numbers(environ: Mapping[str, str], *names: str, also: tuple[str, ...] = ()) -> list[int]:
    """The values of `names` as ints; UserError names every variable that is missing or not a number."""
    missing = [name for name in (*names, *also) if not environ.get(name)]
    given = [name for name in (*names, *also) if environ.get(name)]
    if missing:
        raise UserError(
            f"{', '.join(given)} set but not {', '.join(missing)}: set all of them (torchrun does), "
            "or none for a single process"
        )
    wrong = [f'{name}="{environ[name]}"' for name in names if not environ[name].isdecimal()]
    if wrong:
        raise UserError(f"{', '.join(wrong)}: must be a whole number, 0 or more")
    return [int(environ[name]) for name in names]


def _expand_tasks_per_node(text: str) -> list[int]:
    """Slurm's `2(x3),1` as [2, 2, 2, 1]."""
    counts: list[int] = []
    for part in text.split(","):
        count, _, times = part.rstrip(")").partition("(x")
        counts += [int(count)] * int(times or 1)
    return counts


def _first_slurm_node(environ: Mapping[str, str]) -> str:
    """Name of the step's first node; only Slurm's own tool can expand a list like `rack[0-1]n[2,10]`."""
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    if environ.get("SLURM_STEP_NUM_NODES", environ.get("SLURM_NNODES")) == "1":
        return "127.0.0.1"
    if "[" not in nodes and "," not in nodes and nodes:
        return nodes
    scontrol = shutil.which("scontrol")
    if scontrol is None:
        raise UserError(
            f"MASTER_ADDR is not set and scontrol is not here to expand the node list {nodes} (in a container it "
            "usually is not): export MASTER_ADDR in the batch script, outside the container"
        )
    command = [scontrol, "show", "hostnames", nodes]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout.split()[0]


def interface_towards(address: str) -> str | None:
    """Name of the network interface that this machine uses to reach `address`, or None if it cannot be told.

    Gloo wants one exact name, and the name that a host resolves itself to is often the loopback.  Linux only.
    """
    import fcntl
    import struct

    siocgifaddr = 0x8915
    family, kind, protocol, _, target = socket.getaddrinfo(address, 9, socket.AF_INET, socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        # Connecting a datagram socket sends nothing; it only looks the route up.
        probe.connect(target)
        own = socket.inet_aton(probe.getsockname()[0])
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), siocgifaddr, request)
            except OSError:
                continue
            if answer[20:24] == own:
                return name
    return None
