"""Rules for torchrun's options, wherever they stand: in scripts, manifests and compose files."""

from __future__ import annotations

from collections.abc import Iterator

from lint.lexer import TORCHRUN, Command
from lint.rules import Fault, number, rule
from lint.shell import Flag, Script
from lint.steps import nodes, starts_training, tasks_per_node

_THIS_HOST = ("localhost", "127.0.0.1")


def torchrun_flags(script: Script, option: str) -> list[Flag]:
    """Return every use of a torchrun option: as a flag, or as the PET_ variable that sets it."""
    name = f"PET_{option.upper().replace('-', '_')}"
    variables = [(command, word) for command in script.commands for word in command.words if word.assigned == name]
    return [
        *script.flags(f"--{option}"),
        *(Flag(word.assigned_value, script.place(word), command) for command, word in variables),
    ]


def several_nodes(script: Script) -> bool:
    """Return True if the options give torchrun more than one node."""
    counts = [flag.value.rpartition(":")[2] for flag in torchrun_flags(script, "nnodes")]
    numbers = [each for each in map(number, counts) if each is not None]
    return not any(script.flags("--standalone")) and (max(numbers) if numbers else nodes(script)) > 1


def c10d(script: Script) -> list[Flag]:
    """Return the places where a job of several nodes requests the c10d rendezvous."""
    one_node = any(script.flags("--standalone")) or any(flag.value == "1" for flag in torchrun_flags(script, "nnodes"))
    return [] if one_node else [flag for flag in torchrun_flags(script, "rdzv-backend") if flag.value == "c10d"]


@rule("https://github.com/pytorch/pytorch/issues/82160")
def rendezvous_without_id(script: Script) -> Iterator[Fault]:
    given = torchrun_flags(script, "rdzv-id")
    reason = 'the id of the rendezvous is "none": two jobs on the same endpoint become one'
    fix = '--rdzv-id="$SLURM_JOB_ID", or another name that only this job has'
    if script.in_container:
        fix = "--rdzv-id=NAME, a name that only this job has"
    for flag in given:
        if flag.value.lower() in ("", "none"):
            yield Fault(flag.place, reason, fix)
    for flag in c10d(script)[:1] if not given else []:
        yield Fault(flag.place, reason, fix)


@rule("https://github.com/pytorch/pytorch/issues/73656")
def store_host_is_guessed(script: Script) -> Iterator[Fault]:
    if any("is_host" in flag.value for flag in torchrun_flags(script, "rdzv-conf")):
        return
    for flag in c10d(script)[:1]:
        reason = "each torchrun guesses from names and addresses whether it hosts the rendezvous, and often none does"
        fix = "--rdzv-backend=static if the nodes are fixed; else --rdzv-conf=is_host=1 on node 0, is_host=0 elsewhere"
        yield Fault(flag.place, reason, fix)


@rule("https://github.com/pytorch/pytorch/issues/150660")
def node_rank_is_ignored(script: Script) -> Iterator[Fault]:
    asked = c10d(script)
    for flag in torchrun_flags(script, "node-rank"):
        # Every command sees a variable; an option belongs to one command.
        is_variable = flag.command.name in ("", "export")
        if any(is_variable or other.command is flag.command or not other.command.has(*TORCHRUN) for other in asked):
            reason = "c10d ignores the node's rank: it numbers the nodes in alphabetical order of their names"
            yield Fault(flag.place, reason, "--rdzv-backend=static keeps the numbers; else leave --node-rank out")


@rule("https://github.com/kubeflow/trainer/issues/2407")
def process_count_is_guessed(script: Script) -> Iterator[Fault]:
    for flag in torchrun_flags(script, "nproc-per-node"):
        if flag.value in ("auto", "cpu"):
            reason = (
                f"without GPUs, {flag.value} starts one process per core of the machine, even if the container may "
                "use fewer"
            )
            yield Fault(flag.place, reason, "write the number: --nproc-per-node=8")


@rule("https://github.com/awslabs/awsome-distributed-ai/pull/1112")
def tasks_start_all_processes_each(script: Script) -> Iterator[Fault]:
    for flag in torchrun_flags(script, "nproc-per-node"):
        step = _step_of(script, flag.command)
        tasks = tasks_per_node(script, step) if step else 1
        if tasks > 1 and flag.value != "1":
            reason = f"{tasks} tasks of a node start {flag.value} processes each: {tasks} x {flag.value} on every node"
            fix = "--ntasks-per-node=1 with torchrun; or one task per process: srun python, without torchrun"
            yield Fault(flag.place, reason, fix)


def _step_of(script: Script, command: Command) -> Command | None:
    """Return the srun whose tasks run a command or see its variable; None for what the batch script runs once."""
    outer = [other for other in script.commands[: script.commands.index(command) + 1] if not other.inner]
    if outer and starts_training(outer[-1]):
        return outer[-1]
    in_variable = command.inner or command.name in ("", "export")
    return next(filter(starts_training, script.commands), None) if in_variable else None


@rule("https://github.com/nebius/nebius-solutions-library/issues/177")
def master_is_every_node_itself(script: Script) -> Iterator[Fault]:
    if script.one_network or not several_nodes(script):
        return
    given = [(script.place(word), word.assigned_value) for name, word in script.assignments() if name == "MASTER_ADDR"]
    given += [(flag.place, flag.value) for flag in torchrun_flags(script, "master-addr")]
    given += [(flag.place, flag.value.partition(":")[0]) for flag in torchrun_flags(script, "rdzv-endpoint")]
    for place, host in given:
        if host in _THIS_HOST:
            reason = f"{host} means a different machine on each node: the nodes never meet"
            fix = "the name of node 0, the same on every node"
            if script.is_batch:
                fix += ': scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1'
            yield Fault(place, reason, fix)


@rule("https://github.com/huggingface/pytorch-image-models/issues/1728")
def launcher_is_deprecated(script: Script) -> Iterator[Fault]:
    for command in script.commands:
        for word in command.words:
            if word.value == "torch.distributed.launch":
                reason = "torch.distributed.launch is deprecated, and gives --local-rank to scripts that do not know it"
                fix = "use torchrun, and let the script read LOCAL_RANK from the environment"
                yield Fault(script.place(word), reason, fix)
