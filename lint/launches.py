"""What a script starts: each program with the launcher and the srun in front of it.

A launch is found through variables (`srun $ARGS $CMD`), through `bash -c '…'` and inside containers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from jobspec.spec.sbatch_options import OPTIONS, WITH_VALUE
from lint.sbatch import LONG, Option, Request, read_options
from lint.shell import Command, Script, commands
from lint.words import NOTHING, Source, Text

_SHELL = re.compile(r"(?:ba|da|k|z)?sh$")
_PYTHON = re.compile(r"python[0-9.]*$")
_AGENTS = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
_LAUNCHERS = ("accelerate", "deepspeed", "composer")
_NAMES_OF_CONTAINERS = "apptainer singularity docker podman shifter conda uv poetry pixi numactl micromamba"
CONTAINERS = frozenset(_NAMES_OF_CONTAINERS.split())  # and managers of environments
_STARTS = re.compile(rf"(?:torchrun|{'|'.join(_LAUNCHERS)}|srun|mpirun|mpiexec|ssh|python[0-9.]*|(?:ba|da|k|z)?sh)$")
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


def request(script: Script, step: Launch | None = None) -> Request:
    """Return what the job asks for, or one step of it."""
    return Request(script.asked, {name: option.value for name, option in step.options.items()} if step else {})


def nodes_of(script: Script, launch: Launch) -> int | None:
    """Return how many nodes run a launch: those of its step, or of the job; None if the script does not say."""
    asked = request(script, launch.step)
    return 1 if launch.step and asked.count("ntasks") == 1 else asked.nodes


def launches(script: Script) -> list[Launch]:
    """Return everything that a script starts, in order; computed once."""
    found: list[Launch] | None = script.__dict__.get("launches")
    if found is None:
        found = script.__dict__["launches"] = [x for command in script.commands for x in _of_command(script, command)]
    return found


def trained(script: Script) -> list[Launch]:
    """Return what may train."""
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
    launch = Launch(name, words[at], rest, command, step, inner)
    if name in ("srun", "yhrun"):
        launch.kind = "srun"
        launch.options, rest, launch.open = read_options(rest, _SRUN_FLAGS, LONG)
        launch.program = rest[0] if rest else NOTHING
        yield launch
        yield from launches_of(script, rest, command, launch, inner)
    elif _SHELL.match(name) and (text := _after(rest, r"-[a-z]*c")) is not None:
        inside = list(commands(Source(rest[text])))
        script.inside_texts.extend(inside)
        for each in inside:
            yield from _of_command(script, each, step, True)
    elif name in CONTAINERS and (program := _program_in(rest)) is not None:
        yield from launches_of(script, rest[program:], command, step, inner)
    elif name == "torchrun" or (_PYTHON.match(name) and _agent_module(rest)):
        yield _launcher(launch, "torchrun", rest if name == "torchrun" else rest[_agent_module(rest) :])
    elif name in _LAUNCHERS:
        if name != "accelerate" or [word.value for word in rest[:1]] == ["launch"]:
            yield _launcher(launch, name, rest[1:] if name == "accelerate" else rest)
    elif _PYTHON.match(name):
        launch.program = next((word for word in rest if not word.value.startswith("-")), NOTHING)
        runs = launch.program.value and not {"-c", "-V", "--version"} & {word.value for word in rest[:2]}
        launch.kind = "python" if runs else "python -c"
        yield launch
    else:
        yield launch


def _launcher(launch: Launch, kind: str, words: Sequence[Text]) -> Launch:
    """Add what a launcher's words say, by torchrun's names."""
    launch.kind, launch.words = kind, words
    found, rest, launch.open = read_options(words, _LAUNCHER_FLAGS)
    launch.options = {_SAME.get(name, name) if kind != "torchrun" else name: option for name, option in found.items()}
    launch.program = rest[0] if rest else NOTHING
    return launch


def _after(words: Sequence[Text], option: str) -> int | None:
    """Return where the word after an option stands."""
    return next((at + 1 for at, word in enumerate(words[:-1]) if re.fullmatch(option, word.value)), None)


def _program_in(words: Sequence[Text]) -> int | None:
    """Return where the program begins that a container or an environment manager starts, if it is one that we know."""
    names = [word.value.rpartition("/")[2] for word in words]
    runs = {"exec", "run"} & set(names[:3]) or any(_PYTHON.match(name) or _SHELL.match(name) for name in names[:1])
    return next((at for at, name in enumerate(names) if _STARTS.match(name)), None) if runs else None


def _agent_module(words: Sequence[Text]) -> int:
    """Return where the words after `-m torch.distributed.run` begin; 0 if it is another module."""
    at = _after(words[:5], "-m")
    return at + 1 if at is not None and words[at].value in _AGENTS else 0
