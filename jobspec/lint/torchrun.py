"""Rules for torchrun's options, wherever they stand: in scripts, manifests and compose files."""

from __future__ import annotations

from collections.abc import Iterator

from jobspec.lint.rules import Fault, rule
from jobspec.lint.shell import Flag, Script


def settings(script: Script, option: str) -> list[Flag]:
    """Every use of a torchrun option: as a flag, or as the PET_ variable that torchrun reads it from."""
    name = f"PET_{option.upper().replace('-', '_')}"
    variables = [(command, word) for command in script.commands for word in command.words if word.assigned == name]
    return [
        *script.flags(f"--{option}"),
        *(Flag(word.assigned_value, script.place(word), command) for command, word in variables),
    ]


def c10d(script: Script) -> list[Flag]:
    """Where a job of several nodes asks for the c10d rendezvous."""
    one_node = any(script.flags("--standalone")) or any(flag.value == "1" for flag in settings(script, "nnodes"))
    return [] if one_node else [flag for flag in settings(script, "rdzv-backend") if flag.value == "c10d"]


@rule("https://github.com/pytorch/pytorch/issues/82160")
def rendezvous_without_id(script: Script) -> Iterator[Fault]:
    given = settings(script, "rdzv-id")
    reason = 'the id of the rendezvous is "none": two jobs on the same endpoint become one'
    fix = '--rdzv-id="$SLURM_JOB_ID", or any other name that no second job has'
    for flag in given:
        if flag.value.lower() in ("", "none"):
            yield Fault(flag.place, reason, fix)
    for flag in c10d(script)[:1] if not given else []:
        yield Fault(flag.place, reason, fix)


@rule("https://github.com/pytorch/pytorch/issues/73656")
def store_host_is_guessed(script: Script) -> Iterator[Fault]:
    if any("is_host" in flag.value for flag in settings(script, "rdzv-conf")):
        return
    for flag in c10d(script)[:1]:
        reason = "each agent compares names and addresses to decide whether it hosts the store, and often none does"
        fix = "--rdzv-backend=static for a fixed number of nodes; else --rdzv-conf=is_host=1 on node 0 and is_host=0"
        yield Fault(flag.place, reason, fix)


@rule("https://github.com/pytorch/pytorch/issues/150660")
def node_rank_is_ignored(script: Script) -> Iterator[Fault]:
    if c10d(script):
        for flag in settings(script, "node-rank"):
            if any(
                other.command is flag.command and other.value == "static" for other in settings(script, "rdzv-backend")
            ):
                continue
            reason = "c10d ignores the node's rank: it numbers the nodes in the text order of their names"
            yield Fault(flag.place, reason, "--rdzv-backend=static keeps the numbers; else leave --node-rank out")


@rule("https://github.com/kubeflow/trainer/issues/2407")
def process_count_is_guessed(script: Script) -> Iterator[Fault]:
    for flag in settings(script, "nproc-per-node"):
        if flag.value in ("auto", "cpu"):
            reason = f"{flag.value} on a CPU is the core count of the machine, whatever the container may use"
            yield Fault(flag.place, reason, "write the number: --nproc-per-node=8")
