"""What a script starts: each program with the launcher and the srun in front of it.

A launch is found through variables (`srun $ARGS $CMD`), through `bash -c '…'` and inside containers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from lint.sbatch import Request
from lint.shell import NOTHING, Command, Script, Text

SHELL = re.compile(r"(?:ba|da|k|z)?sh$")
PYTHON = re.compile(r"python[0-9.]*$")
_AGENTS = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
_LAUNCHERS = ("accelerate", "deepspeed", "composer")
CONTAINERS = (
    "apptainer",
    "singularity",
    "docker",
    "podman",
    "shifter",
    "conda",
    "uv",
    "poetry",
    "pixi",
    "numactl",
    "micromamba",
)
_IN_FRONT = ("exec", "env", "nohup", "time", "command", "stdbuf", "nice", "!")
_TAKE_VALUES = ("-k", "--kill-after", "-s", "--signal")
_SRUN = {"c": "cpus-per-task", "K": "kill-on-bad-exit", "N": "nodes", "n": "ntasks", "w": "nodelist", "G": "gpus"}
_SHORT_FLAGS = "EHkhlOQsuvVXZ"
_SHORT_WITH_OR_WITHOUT = "IK"  # their value follows without a space
_NAMES_OF_FLAGS = """
    bcast compress contiguous disable-status exact exclusive external help hold immediate interactive kill-on-bad-exit
    label multi-prog nice no-allocate no-kill overcommit overlap oversubscribe preserve-env propagate pty quiet reboot
    resv-ports send-libs share spread-job test-only unbuffered use-min-nodes usage verbose version whole x11
    container-entrypoint container-mount-home container-readonly container-remap-root container-writable
    no-container-entrypoint no-container-entrypoint-log no-container-mount-home no-container-remap-root
"""
_SRUN_FLAGS = frozenset(_NAMES_OF_FLAGS.split())  # the value of any other option is the next word, or follows `=`
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


@dataclass(frozen=True)
class Option:
    """An option's value and the place of both; `value` is empty if it has none."""

    value: str
    text: Text


@dataclass
class Step:
    """An srun: its own options by long name.  open: a variable may hold more of them."""

    command: Command
    options: dict[str, Option] = field(default_factory=dict)
    open: bool = False
    text: Text = NOTHING
    program: Text = NOTHING

    @property
    def values(self) -> dict[str, str]:
        return {name: option.value for name, option in self.options.items()}


@dataclass
class Launch:
    """A program that is started.

    kind: torchrun, accelerate, deepspeed, composer, python, or the program's name.
    options: those of the launcher by long name with dashes; accelerate's and deepspeed's by torchrun's names.
    open: a variable may hold more of them.  words: all after the launcher's name.  inner: another shell starts it.
    """

    kind: str
    text: Text
    words: list[Text]
    command: Command
    step: Step | None = None
    inner: bool = False
    options: dict[str, Option] = field(default_factory=dict)
    open: bool = False
    script: Text = NOTHING

    def value(self, name: str) -> str:
        option = self.options.get(name)
        return option.value if option else ""

    @property
    def is_agent(self) -> bool:
        """True if it starts the processes of a node and lets nodes meet as torchrun does."""
        return self.kind in ("torchrun", "accelerate", "composer")

    @property
    def trains(self) -> bool:
        """True for a program that may train: a launcher, or Python with a script or module."""
        return self.is_agent or self.kind in ("deepspeed", "python")


def request(script: Script, step: Step | None = None) -> Request:
    """Return what the job asks for, or one step of it."""
    job = {found.name: found.value for found in script.directives if not found.ignored}
    return Request(job, step.values if step else None)


def launches(script: Script) -> list[Launch]:
    """Return everything that a script starts, in order; computed once."""
    if "launches" not in script.__dict__:
        found = list(_of_words(script, script.argv, Command([], 0), None, False)) if script.argv else []
        for command in script.commands:
            found += _of_command(script, command)
        script.__dict__["launches"] = found
    found = script.__dict__["launches"]
    assert isinstance(found, list)
    return found


def _of_command(script: Script, command: Command, step: Step | None = None, inner: bool = False) -> Iterator[Launch]:
    words = [word for word in command.words if word.assigned is None and word.node.type != "heredoc_body"]
    yield from _of_words(script, [text for word in words for text in script.fields(word, inner)], command, step, inner)


def _of_words(
    script: Script, words: Sequence[Text], command: Command, step: Step | None, inner: bool
) -> Iterator[Launch]:
    words = _past_what_is_in_front(words)
    if not words:
        return
    first, rest = words[0], list(words[1:])
    name = first.value.rpartition("/")[2]
    if name in ("srun", "yhrun"):
        step = Step(command, text=first)
        rest = _srun(rest, step)
        if rest:
            step.program = rest[0]
        yield Launch("srun", first, rest, command, step, inner)
        yield from _of_words(script, rest, command, step, inner)
    elif name == "eval" and all(_is_unknown(word.value) for word in rest):
        yield Launch(name, first, [Text(script.shown(word.value), word.at) for word in rest], command, step, inner)
    elif name == "eval":
        for each in script.inside(_spaced(rest)):
            yield from _of_command(script, each, step, inner)
    elif SHELL.match(name):
        at = next((at for at, word in enumerate(rest) if re.fullmatch(r"-[a-z]*c", word.value)), None)
        if at is not None and at + 1 < len(rest):
            inside = script.inside(rest[at + 1])
            script.inside_texts.extend(inside)
            for each in inside:
                yield from _of_command(script, each, step, True)
        else:
            yield Launch(name, first, rest, command, step, inner)
    elif name in CONTAINERS and (found := _program_in(rest)) is not None:
        yield from _of_words(script, rest[found:], command, step, inner)
    elif name == "torchrun" or (PYTHON.match(name) and (module := _agent_module(rest)) is not None):
        rest = rest if name == "torchrun" else rest[(module or 0) + 1 :]
        yield _parsed(Launch("torchrun", first, rest, command, step, inner))
    elif name in _LAUNCHERS:
        if name != "accelerate" or [word.value for word in rest[:1]] == ["launch"]:
            yield _parsed(Launch(name, first, rest[1:] if name == "accelerate" else rest, command, step, inner))
    elif PYTHON.match(name):
        script_at = next((word for word in rest if not word.value.startswith("-")), NOTHING)
        runs = not any(word.value in ("-c", "-V", "--version") for word in rest[:2]) and script_at.value
        yield Launch("python" if runs else "python -c", first, rest, command, step, inner, script=script_at)
    else:
        yield Launch(name, first, rest, command, step, inner)


def _spaced(words: Sequence[Text]) -> Text:
    places = [place for word in words for place in (*word.at, word.at[-1] if len(word.at) else 0)]
    return Text("".join(f"{word.value} " for word in words), places)


def everything(script: Script) -> list[Command]:
    """Return all commands of a script, those in texts that other shells run included."""
    launches(script)
    return [*script.commands, *script.inside_texts]


def _past_what_is_in_front(words: Sequence[Text]) -> Sequence[Text]:
    at = 0
    while at < len(words):
        value = words[at].value
        if value == "timeout":
            at += 1
            while at < len(words) and words[at].value.startswith("-"):
                at += 2 if words[at].value in _TAKE_VALUES else 1
        elif value not in _IN_FRONT and not (at and re.match(r"[A-Za-z_]\w*=", value)):
            break
        at += 1
    return words[at:]


def _srun(words: Sequence[Text], step: Step) -> list[Text]:
    """Read srun's own options, those before the program; return the program and its words."""
    at = 0
    while at < len(words):
        word, value = words[at], words[at].value
        if value.startswith("--"):
            name, equals, text = value[2:].partition("=")
            if not equals and name not in _SRUN_FLAGS:
                at += 1
                text = words[at].value if at < len(words) else ""
            step.options["ntasks-per-node" if name == "tasks-per-node" else name] = Option(text, word)
        elif value.startswith("-") and len(value) > 1:
            letters = value[1:].lstrip(_SHORT_FLAGS)  # -lK1 is -l -K1
            if letters:
                name, text = letters[0], letters[1:]
                if not text and name not in _SHORT_WITH_OR_WITHOUT:
                    at += 1
                    text = words[at].value if at < len(words) else ""
                step.options[_SRUN.get(name, name)] = Option(text, word)
        elif _is_unknown(value):
            step.open = True
        else:
            break
        at += 1
    return list(words[at:])


def _is_unknown(value: str) -> bool:
    """Return True for a word that a variable or a command replaces as a whole."""
    return (len(value) == 1 and value >= "\U000f0000") or re.fullmatch(r"\$(?:\{[^}]*\}|\w+|@)", value) is not None


def _program_in(words: Sequence[Text]) -> int | None:
    """Return where the program begins that a container or an environment manager starts, if it is one that we know."""
    first = words[0].value if words else ""
    if not {"exec", "run"} & {word.value for word in words[:3]} and not PYTHON.match(first) and not SHELL.match(first):
        return None
    known = ("torchrun", "srun", "mpirun", "mpiexec", "ssh", *_LAUNCHERS)
    for at, word in enumerate(words):
        name = word.value.rpartition("/")[2]
        if name in known or PYTHON.match(name) or (SHELL.match(name) and not word.value.startswith("-")):
            return at
    return None


def _agent_module(words: Sequence[Text]) -> int | None:
    values = [word.value for word in words[:4]]
    at = values.index("-m") + 1 if "-m" in values else len(values)
    return at if at < len(values) and values[at] in _AGENTS else None


def _parsed(launch: Launch) -> Launch:
    """Read the launcher's own options, those before the program that it starts."""
    at, words = 0, launch.words
    while at < len(words):
        value = words[at].value
        if not value.startswith("-"):
            if not _is_unknown(value):
                break
            launch.open = True
        else:
            name, equals, text = value.lstrip("-").partition("=")
            name, option = name.replace("_", "-"), words[at]
            takes = not equals and name not in _LAUNCHER_FLAGS and at + 1 < len(words)
            if takes and not words[at + 1].value.startswith("--"):
                at += 1
                text, option = words[at].value, words[at]
            launch.options[_SAME.get(name, name) if launch.kind != "torchrun" else name] = Option(text, option)
        at += 1
    return replace(launch, script=words[at] if at < len(words) else NOTHING)


def nodes_of(script: Script, launch: Launch) -> int | None:
    """Return how many nodes run a launch: those of its step, or of the job; None if the script does not say."""
    asked = request(script, launch.step)
    tasks = asked.count("ntasks")
    if launch.step and tasks == 1:
        return 1
    return asked.nodes
