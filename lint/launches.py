"""What a script starts: each program with the launcher and the srun in front of it.

A launch is found through variables (`srun $ARGS $CMD`), through `bash -c '…'` and inside containers.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from jobspec.spec.sbatch_options import OPTIONS, WITH_VALUE
from lint.sbatch import LONG, Option, Request, read_options
from lint.shell import Command, Script, commands
from lint.words import NOTHING, Source, Text

SHELL = re.compile(r"(?:a|ba|da|k|z)?sh$")
_PYTHON = re.compile(r"python[0-9.]*$")
_INTERPRETER = re.compile(f"{_PYTHON.pattern}|{SHELL.pattern}")
# On words that end with \0 each.
_LAUNCHER = re.compile(
    r"(torchrun|deepspeed|composer)\0|(accelerate)\0launch\0"
    r"|python[0-9.]*\0(?:(?!-m\0)[^\0]*\0){0,3}-m\0(?:torchrun|torch\.distributed\.(?:run|launch))\0"
)
_NAMES_OF_CONTAINERS = "apptainer singularity docker podman shifter conda uv poetry pixi numactl micromamba"
CONTAINERS = frozenset(_NAMES_OF_CONTAINERS.split())  # and managers of environments
_STARTS = re.compile(rf"(?:torchrun|accelerate|deepspeed|composer|srun|mpirun|mpiexec|ssh)$|{_INTERPRETER.pattern}")
_IN_FRONT = ("exec", "env", "nohup", "time", "timeout", "command", "stdbuf", "nice", "!")
_OF_THOSE = re.compile(r"-.*|[A-Za-z_]\w*=.*|\d[\d.]*[smhd]?|[A-Z]+")  # their options, variables, times and signals
# The value of any other option is the next word, or follows `=`.
_NAMES_OF_SRUN_FLAGS = """
    bcast compress disable-status exact immediate interactive kill-on-bad-exit label multi-prog no-allocate overlap
    preserve-env pty send-libs unbuffered whole x11
    container-entrypoint container-mount-home container-readonly container-remap-root container-writable
    no-container-entrypoint no-container-entrypoint-log no-container-mount-home no-container-remap-root
"""
_SRUN_FLAGS = (OPTIONS - WITH_VALUE - {"wait"}) | frozenset(_NAMES_OF_SRUN_FLAGS.split())
_NAMES_OF_LAUNCHER_FLAGS = """
    standalone no-python m module run-path use-env help h version virtual-local-rank multi-gpu cpu use-deepspeed
    use-fsdp debug quiet same-network use-mps-device no-ssh force-multi enable-each-rank-log no-local-rank u
"""
_LAUNCHER_FLAGS = frozenset(_NAMES_OF_LAUNCHER_FLAGS.split())
_NAMES_OF_SAME = """
    num-machines=nnodes machine-rank=node-rank num-processes=total main-process-ip=master-addr num-nodes=nnodes
    main-process-port=master-port num-gpus=nproc-per-node world-size=total n=nproc-per-node
"""
_SAME = dict(pair.split("=") for pair in _NAMES_OF_SAME.split())  # accelerate's and deepspeed's names as torchrun's


@dataclass
class Launch:
    """A program that is started.

    kind: srun, torchrun, accelerate, deepspeed, composer, python, `python -c`, or the program's name.
    options: the launcher's or srun's own, by long name with dashes; accelerate's and deepspeed's by torchrun's names.
    open: a variable may hold more of them.  words: all after the launcher's name.  inner: another shell starts it.
    step: the srun in front of it.  program: what the launcher, srun or Python starts.
    """

    script: Script
    kind: str
    text: Text
    words: Sequence[Text]
    command: Command
    step: Launch | None = None
    inner: bool = False
    options: dict[str, Option] = field(default_factory=dict)
    open: bool = False
    program: Text = NOTHING

    def value(self, name: str) -> str:
        return self.options[name].value if name in self.options else ""

    @property
    def is_agent(self) -> bool:
        """True if it starts the processes of a node and lets nodes meet as torchrun does."""
        return self.kind in ("torchrun", "accelerate", "composer")

    @property
    def trains(self) -> bool:
        """True for a program that may train: a launcher, or Python with a script or module."""
        return self.is_agent or self.kind in ("deepspeed", "python")

    @cached_property
    def asked(self) -> Request:
        """What its step asks for, or the job."""
        step = self.step.options.items() if self.step else ()
        return self.script.asked.new_child({name: option.value for name, option in step})

    @property
    def nodes(self) -> int | None:
        """How many nodes run it: those of its step, or of the job; None if the script does not say."""
        return 1 if self.step and self.asked.count("ntasks") == 1 else self.asked.nodes

    @property
    def is_on_several(self) -> bool:
        """True if srun starts it on more than one node, or Kubernetes in several pods, for certain."""
        step, several = self.step, (self.nodes or 1) > 1
        known = self.script.in_container if step is None else not step.open and "nodelist" not in step.options
        return several and known

    @property
    def is_alone(self) -> bool:
        """True if the options of a launcher name one node."""
        return "standalone" in self.options or self.value("nnodes").partition(":")[0] == "1"

    @property
    def uses_c10d(self) -> bool:
        """True if c10d numbers the nodes: node ranks then count for nothing."""
        by_default = "rdzv-endpoint" in self.options and self.kind == "torchrun"
        return self.value("rdzv-backend") == "c10d" or by_default

    def read(self, words: Sequence[Text], flags: Container[str], short: Mapping[str, str]) -> Sequence[Text]:
        """Take the options in front of some words, by torchrun's names; return the words from the program on."""
        self.words = words
        end = next((at for at, word in enumerate(words) if word.value == "--"), len(words))
        found, before, self.open = read_options(words[:end], flags, short)
        rest = [*before, *words[end if before else end + 1 :]]
        same = {} if self.kind in ("srun", "torchrun") else _SAME
        self.options = {same.get(name, name): option for name, option in found.items()}
        self.program = rest[0] if rest else NOTHING
        return rest


def launches(script: Script) -> list[Launch]:
    """Return everything that a script starts, in order; computed once."""
    found: list[Launch] | None = script.__dict__.get("launches")
    if found is None:
        found = script.__dict__["launches"] = [x for command in script.commands for x in _of_command(script, command)]
    return found


def trained(script: Script) -> list[Launch]:
    return [launch for launch in launches(script) if launch.trains]


def everything(script: Script) -> list[Command]:
    """Return all commands of a script, those in texts that other shells run included."""
    launches(script)
    return [*script.commands, *script.inside_texts]


def _of_command(script: Script, command: Command, step: Launch | None = None, inner: bool = False) -> Iterator[Launch]:
    fields = [script.fields(word, inner) for word in command.words if word.assigned is None]
    yield from launches_of(script, [text for texts in fields for text in texts], command, step, inner)


def launches_of(
    script: Script, words: Sequence[Text], command: Command, step: Launch | None, inner: bool
) -> Iterator[Launch]:
    at = 0
    while at < len(words) and (words[at].value in _IN_FRONT or (at and _OF_THOSE.fullmatch(words[at].value))):
        at += 1
    if at == len(words):
        return
    rest, name = words[at + 1 :], words[at].value.rpartition("/")[2]
    launch = Launch(script, name, words[at], rest, command, step, inner)
    launcher = _LAUNCHER.match("".join(f"{each}\0" for each in [name, *(word.value for word in rest[:5])]))
    after = pairwise(rest if SHELL.match(name) else ())
    text = next((text for word, text in after if re.fullmatch(r"-[a-z]*c", word.value)), None)
    if name in ("srun", "yhrun"):
        launch.kind = "srun"
        program = launch.read(rest, _SRUN_FLAGS, LONG)
        yield launch
        yield from launches_of(script, program, command, launch, inner)
    elif text:
        inside = list(commands(Source(text)))
        script.inside_texts.extend(inside)
        for each in inside:
            yield from _of_command(script, each, step, True)
    elif name in CONTAINERS and (program := _program_in(rest)):
        yield from launches_of(script, program, command, step, inner)
    elif launcher:
        launch.kind = launcher[1] or launcher[2] or "torchrun"
        launch.read(rest[launcher[0].count("\0") - 1 :], _LAUNCHER_FLAGS, {})
        yield launch
    elif _PYTHON.match(name):
        launch.program = next((word for word in rest if not word.value.startswith("-")), NOTHING)
        runs = launch.program.value and not {"-c", "-V", "--version"} & {word.value for word in rest[:2]}
        launch.kind = "python" if runs else "python -c"
        yield launch
    elif name != "accelerate":  # such as `accelerate config`
        yield launch


def _program_in(words: Sequence[Text]) -> Sequence[Text]:
    """Return the words from the program on that a container or an environment manager starts, if we know it."""
    names = [word.value.rpartition("/")[2] for word in words]
    runs = {"exec", "run"} & set(names[:3]) or any(map(_INTERPRETER.match, names[:1]))
    return next((words[at:] for at, name in enumerate(names) if _STARTS.match(name)), ()) if runs else ()
