"""A rule for batch scripts of several nodes that start torchrun only on the first node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile

from lint.lexer import TORCHRUN, Command
from lint.rules import Fault, number, rule
from lint.shell import Script
from lint.steps import TOOLS, starts_training

# Any other program may start programs on other nodes, or may start this script there.
_NAMES_OF_SAFE = """
    : } basename break case continue curl declare dirname du esac exit false for function getent git id let ln local
    mktemp ml module mv nproc nvcc pip pip3 pkill ps readlink realpath return scontrol seq shift shuf sinfo squeue stat
    type ulimit umask unset wget which whoami
"""
_SAFE = TOOLS.union(_NAMES_OF_SAFE.split())
_SETS_UP = re.compile(r"activate|conda|mamba|env|module|profile|rc$")  # in what source or eval reads
_FUNCTION = re.compile(r"\bfunction[ \t]+(\w+)|(\w+)[ \t]*\(\)")
_RUNNERS = ("apptainer", "singularity", "docker", "podman", "conda", "uv", "poetry", "pixi")
_REACHES = ("srun", "mpirun", "mpiexec", "ssh")  # from inside a container, too
_PYTHON = re.compile(r"python[0-9.]*")
_HETEROGENEOUS = re.compile(r"^#SBATCH[ \t]+(?:het|pack)job", re.M)
_ARRAY_BEGINS = re.compile(r"=\(\s*")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)(?::?-[^}]*)?\}?")
_ALL_NODES = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")
_FIRST_NODE = {"0", "SLURM_NODEID", "SLURM_PROCID"}


@rule("https://github.com/huggingface/accelerate/issues/2816")
def only_the_first_node_trains(script: Script) -> Iterator[Fault]:
    """Report only what is certain: nothing else in the script can start a program on another node."""
    count, commands = _nodes(script), _commands(script)
    if count < 2 or not _stay_on_their_node(script, commands):
        return
    for command in commands:
        launcher = _launcher(script, command)
        if launcher and not command.inner and _waits(script, command):
            reason = f"sbatch runs this script only on the first of the {count} nodes: "
            reason += f"{launcher} waits for the others until a timeout"
            fix = f"one on each node: srun --ntasks-per-node=1 --kill-on-bad-exit=1 {command.name} …"
            yield Fault(script.place(command.program[0]), reason, fix)


def _nodes(script: Script) -> int:
    """Return the number of nodes that the script itself requests; the minimum of a range, and 0 if it is unknown."""
    own = [found for found in script.directives if not found.ignored and not found.in_other_script]
    asked = [found.value.partition("-")[0] for found in own if found.name == "nodes"]
    return (number(asked[-1]) or 0) if asked and not _HETEROGENEOUS.search(script.text) else 0


def _commands(script: Script) -> list[Command]:
    """Return the commands of a script, without the elements of arrays."""
    arrays = {found.end() for found in _ARRAY_BEGINS.finditer(script.text)}
    return [command for command in script.commands if command.words and command.words[0].start not in arrays]


def _stay_on_their_node(script: Script, commands: list[Command]) -> bool:
    """Return True if no command can start a program on another node, nor a second torchrun in the background."""
    functions = {name for names in _FUNCTION.findall(script.text) for name in names}
    names = [command.name.rstrip("(") for command in commands if not (_is_safe(command) or _launcher(script, command))]
    return functions.issuperset(names) and all(command.after != "&" for command in commands)


def _is_safe(command: Command) -> bool:
    words = [word.value for word in command.program]
    if command.name == "srun":
        return command.has("hostname") and not starts_training(command)
    if command.name in ("source", ".", "eval"):
        return bool(_SETS_UP.search(" ".join(words[1:2])))
    if command.name in _RUNNERS:
        return not command.has("run", "exec")
    known = command.name in _SAFE or (_PYTHON.fullmatch(command.name) and words[1:2] == ["-c"])
    return bool(known) or not words or words[-1] == "]]"


def _own(script: Script, command: Command) -> Script:
    """Return a launcher's command without the program that it starts and the arguments of that program."""
    words = takewhile(lambda word: not word.value.endswith(".py"), command.program)
    return Script(script.text, script.locate, [Command([*words])])


def _launcher(script: Script, command: Command) -> str | None:
    """Return the name of the launcher that a command starts on its own node; None for any other command."""
    own = _own(script, command)
    (words,) = own.commands
    if command.name == "accelerate":  # which can also start processes on other nodes, but not with these options
        stays = any(own.flags("--multi-gpu", "--use-fsdp")) and not any(own.flags("--config-file", "--use-deepspeed"))
        return "accelerate launch" if stays else None
    runs = command.name in _RUNNERS and words.has("run", "exec") and not words.has(*_REACHES)
    runs = runs or command.name == "torchrun" or bool(_PYTHON.fullmatch(command.name))
    return "torchrun" if runs and words.has(*TORCHRUN) else None


def _waits(script: Script, command: Command) -> bool:
    """Return True if a launcher asks for more than one node, and no other job runs a part of it."""
    own = _own(script, command)
    counts = [value for flag in own.flags("--nnodes", "--num-machines") for value in _meanings(script, flag.value)]
    ranks = [value for flag in own.flags("--node-rank", "--machine-rank") for value in _meanings(script, flag.value)]
    several = bool(counts) and all(value in _ALL_NODES or (number(value) or 0) > 1 for value in counts)
    return several and _FIRST_NODE.issuperset(ranks) and not any(own.flags("--help", "-h", "--version"))


def _meanings(script: Script, value: str) -> list[str]:
    """Return what the script assigns to the variable in a value, or the value; variables without `$` and defaults."""
    texts = script.variables.get(_VARIABLE.sub(r"\1", value), [value])
    return [_VARIABLE.sub(r"\1", text.strip("\"'")) for text in texts]
