"""A rule for batch scripts of several nodes that start torchrun only on the first node."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lint.lexer import TORCHRUN, Command
from lint.rules import Fault, number, rule
from lint.shell import Script
from lint.steps import starts_training

# Each of these may start programs on other nodes, or may give a script other parts on other nodes.
_MAY_REACH_OTHER_NODES = re.compile(
    r"\b(?:srun|sbatch|salloc|mpi(?:run|exec)\w*|orterun|prte?run|ibrun|jsrun|aprun|p?[dr]?ssh|clush|ansible|parallel|flux"
    r"|ray|dask\w*|horovodrun|deepspeed|hetjob|packjob)\b"
)
_COMMENT = re.compile(r"^[ \t]*#(?![ \t]*SBATCH).*$", re.M)
_LOOPS = ("for", "while", "until", "select")
_CONTAINERS_AND_ENVIRONMENTS = ("apptainer", "singularity", "docker", "podman", "conda", "uv", "poetry", "pixi")
_PYTHON = re.compile(r"python[0-9.]*")
_ALL_NODES = re.compile(r"\$\{?SLURM_(?:JOB_NUM_|N)NODES\}?")
_VARIABLE = re.compile(r"\$\{?(\w+)")
# accelerate can also start processes on other nodes, but not with these options.
_ACCELERATE_STAYS = ("--multi-gpu", "--use-fsdp")
_ACCELERATE_GOES = ("--config-file", "--use-deepspeed", "--deepspeed-hostfile")


@rule("https://github.com/huggingface/accelerate/issues/2816")
def only_the_first_node_trains(script: Script) -> Iterator[Fault]:
    """Report only what is certain: nothing in the script can start a program on another node."""
    count = _nodes(script)
    if count < 2 or _may_reach_other_nodes(script):
        return
    for command in _outside_loops(script.commands):
        launcher = _launcher(command)
        if launcher is None or _is_part_of_a_run(script, command):
            continue
        reason = f"sbatch runs this script only on the first of the {count} nodes: "
        asked = [flag.value for flag in script.flags("--nnodes", "--num-machines") if flag.command is command]
        if any(_ALL_NODES.fullmatch(value) or (number(value) or 0) > 1 for value in asked):
            reason += f"{launcher} waits for the others until a timeout"
        else:
            reason += "the others do nothing"
        fix = f"one on each node: srun --ntasks-per-node=1 --kill-on-bad-exit=1 {command.name} …"
        yield Fault(script.place(command.program[0]), reason, fix)


def _nodes(script: Script) -> int:
    """Return the number of nodes that the script itself requests; the minimum of a range, and 0 if it is unknown."""
    asked = [
        found.value
        for found in script.directives
        if found.name == "nodes" and not found.ignored and not found.in_other_script
    ]
    return (number(asked[-1].partition("-")[0]) or 0) if asked else 0


def _may_reach_other_nodes(script: Script) -> bool:
    """Return True if a word of the script may reach other nodes, unless it only asks a node for its address."""
    asks = [command for command in script.commands if command.name == "srun" and command.has("hostname")]
    harmless = sum(not starts_training(command) for command in asks)
    return len(_MAY_REACH_OTHER_NODES.findall(_COMMENT.sub("", script.text))) > harmless


def _outside_loops(commands: list[Command]) -> Iterator[Command]:
    """Yield the commands that the batch shell itself runs, but none in a loop: it may go over the nodes."""
    depth = 0
    for command in commands:
        first = [word.text for word in command.words[:2]]
        depth += any(text in _LOOPS for text in first) - (first[:1] == ["done"])
        if depth <= 0 and not command.inner:
            yield command


def _launcher(command: Command) -> str | None:
    """Return the name of the launcher that a command starts on its own node; None for any other command."""
    values = [word.value for word in command.program]
    if command.name in _CONTAINERS_AND_ENVIRONMENTS:
        starts = [at for at, value in enumerate(values) if value == "torchrun"]
        return "torchrun" if starts else None
    if command.name == "torchrun" or (_PYTHON.fullmatch(command.name) and _runs_module(values)):
        return "torchrun"
    if command.name == "accelerate" and values[1:2] == ["launch"]:
        given = {value.partition("=")[0].replace("_", "-") for value in values}
        if given.intersection(_ACCELERATE_STAYS) and not given.intersection(_ACCELERATE_GOES):
            return "accelerate launch"
    return None


def _runs_module(values: list[str]) -> bool:
    return any(values[at - 1] == "-m" for at, value in enumerate(values) if at and value in TORCHRUN)


def _is_part_of_a_run(script: Script, command: Command) -> bool:
    """Return True if the node's number comes from outside: other jobs then run the script for the other nodes."""
    for flag in script.flags("--node-rank", "--machine-rank"):
        name = _VARIABLE.match(flag.value)
        if flag.command is command and name and not name[1].startswith("SLURM_") and name[1] not in script.variables:
            return True
    return False
