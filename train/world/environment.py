"""World: the place of this process among all processes, read from the environment and from nowhere else.

`World.detect` is the only reader of RANK and related variables.  It imports no torch, so a wrong environment is
reported at once; `train/world/rendezvous.py` opens the connections.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from train.errors import UserError


@dataclass(frozen=True)
class World:
    """One process among `world_size`; `rank` is global and `local_rank` counts within the node.

    launcher: torchrun, procs (`python -m train --procs`), slurm (one task per process), environment (set by hand) or
    none (one process).  store_is_served: the launcher listens on master_port; otherwise rank 0 has to.
    attempt: torchrun counts a restart only on the node whose process failed, so it may differ between nodes.
    store_attempt: keeps attempts apart in a store that outlives them; otherwise it is 0.
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
    store_attempt: int = 0

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> World:
        """Read the environment of torchrun, of a Slurm task (srun(1), OUTPUT ENVIRONMENT), or of a single process.

        Raises UserError if variables are missing, are no numbers or contradict each other.
        """
        if environ.keys() & {"LOCAL_RANK", "RANK"}:
            return cls._from_torchrun(environ)
        # A batch script has SLURM_PROCID=0 too; only a process that srun started has a step.
        if "SLURM_PROCID" in environ and "SLURM_STEP_ID" in environ:
            return cls._from_slurm(environ)
        if "WORLD_SIZE" in environ:
            return cls._from_torchrun(environ)  # which says what is missing
        return cls()

    @classmethod
    def _from_torchrun(cls, environ: Mapping[str, str]) -> World:
        rank, world_size, local_rank, master_port = _numbers(
            environ, "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT", also=("MASTER_ADDR",)
        )
        attempt = _number(environ, "TORCHELASTIC_RESTART_COUNT", 0)
        store_is_served = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return cls(
            rank=rank,
            world_size=world_size,
            local_rank=local_rank,
            local_world_size=_number(environ, "LOCAL_WORLD_SIZE", world_size),
            node_rank=_number(environ, "GROUP_RANK", _number(environ, "NODE_RANK", 0)),
            master_addr=environ["MASTER_ADDR"],
            master_port=master_port,
            launcher="torchrun" if "TORCHELASTIC_RUN_ID" in environ else environ.get("TRAIN_LAUNCHER", "environment"),
            store_is_served=store_is_served,
            attempt=attempt,
            store_attempt=attempt if store_is_served else 0,
        )._checked()

    @classmethod
    def _from_slurm(cls, environ: Mapping[str, str]) -> World:
        rank, local_rank, node_rank, job, step = _numbers(
            environ,
            *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_JOB_ID", "SLURM_STEP_ID"),
            also=("SLURM_GTIDS",),
        )
        # The step's own numbers; those without STEP may be the allocation's.
        several_nodes = environ.get("SLURM_STEP_NUM_NODES", environ.get("SLURM_NNODES")) != "1"
        address = environ.get("MASTER_ADDR") or ("" if several_nodes else "127.0.0.1")
        if not address:
            raise UserError(
                "MASTER_ADDR is not set, and the step has several nodes: in the batch script, export "
                'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)'
            )
        return cls(
            rank=rank,
            world_size=_number(environ, "SLURM_STEP_NUM_TASKS", _number(environ, "SLURM_NTASKS", 1)),
            local_rank=local_rank,
            local_world_size=len(environ["SLURM_GTIDS"].split(",")),  # the ranks of this node
            node_rank=node_rank,
            master_addr=address,
            # Below the ephemeral range (32768-60999), and different for jobs and steps that share a node.
            master_port=_number(environ, "MASTER_PORT", 10000 + (job * 31 + step) % 20000),
            launcher="slurm",
        )._checked()

    def _checked(self) -> World:
        if not 0 <= self.rank < self.world_size:
            raise UserError(
                f"RANK is {self.rank} and WORLD_SIZE is {self.world_size} ({self.launcher}): "
                f"ranks count from 0 to {self.world_size - 1}"
            )
        if not 0 <= self.local_rank < self.local_world_size <= self.world_size:
            raise UserError(
                f"LOCAL_RANK is {self.local_rank}, LOCAL_WORLD_SIZE {self.local_world_size} and WORLD_SIZE "
                f"{self.world_size} ({self.launcher}): local ranks count from 0 to "
                "LOCAL_WORLD_SIZE - 1, and LOCAL_WORLD_SIZE is at most WORLD_SIZE"
            )
        if not 0 < self.master_port < 65536:
            raise UserError(f"MASTER_PORT is {self.master_port}: a port is a number from 1 to 65535")
        return self


def _numbers(environ: Mapping[str, str], *names: str, also: tuple[str, ...] = ()) -> list[int]:
    """Return the values of `names` as ints; raise UserError with every variable that is missing or not a number."""
    missing = [name for name in (*names, *also) if not environ.get(name)]
    given = [name for name in (*names, *also) if environ.get(name)]
    if missing:
        raise UserError(
            f"{', '.join(given)} must not be set without {', '.join(missing)}: set all of them (torchrun does), "
            "or none for a single process"
        )
    wrong = [f'{name}="{environ[name]}"' for name in names if not re.fullmatch("[0-9]+", environ[name])]
    if wrong:
        raise UserError(f"{', '.join(wrong)}: must be a whole number, 0 or more")
    return [int(environ[name]) for name in names]


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, str(default))
    if not re.fullmatch("[0-9]+", text):
        raise UserError(f'{name}="{text}": must be a whole number, 0 or more')
    return int(text)
