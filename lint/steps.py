"""What an srun command starts: its own options, its nodes and its tasks.

Source: srun's manual, of Slurm 22.05 and 25.05.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from lint.lexer import Command
from lint.rules import number
from lint.shell import Script

_PROGRAMS = (
    "torchrun",
    "python",
    "python3",
    "accelerate",
    "bash",
    "sh",
    "apptainer",
    "singularity",
    "docker",
    "podman",
)

# A text of these alone looks at the nodes, or prepares them.
_NAMES_OF_TOOLS = """
    [ [[ awk cat cd cp cut date df done echo export fi for free grep head hostname ip ls lscpu mkdir nvidia-smi printenv
    printf pwd rm rsync sed set sleep sort tail tar tee test touch tr true ulimit uname uniq unzip wc
"""
TOOLS = frozenset(_NAMES_OF_TOOLS.split())

_LONG = {"c": "cpus-per-task", "K": "kill-on-bad-exit", "N": "nodes", "n": "ntasks"}
_SHORT_FLAGS = "EHkhlOQsuvVXZ"
_SHORT_WITH_OR_WITHOUT = "IK"  # their value follows without a space
_NAMES_OF_FLAGS = """
    bcast compress contiguous disable-status exact exclusive external help hold immediate interactive kill-on-bad-exit
    label multi-prog nice no-allocate no-kill overcommit overlap oversubscribe preserve-env propagate pty quiet reboot
    resv-ports send-libs share spread-job test-only unbuffered use-min-nodes usage verbose version whole x11
    container-entrypoint container-mount-home container-readonly container-remap-root container-writable
    no-container-entrypoint no-container-entrypoint-log no-container-mount-home no-container-remap-root
"""
# The value of any other option is the next word, unless it follows an equals sign.
_LONG_FLAGS = frozenset(_NAMES_OF_FLAGS.split())
_VARIABLE = re.compile(r"\$\{?(\w+)(?:\[[@*]\])?\}?")
_OPTIONS_FIRST = re.compile(r"[\s\"'(\\]*(?:-|\$\{?\w)")


def starts_training(command: Command) -> bool:
    """Return True if an srun starts the job and does not only inspect the nodes."""
    if command.name != "srun" or (command.text and all(inner.name in TOOLS for inner in command.text)):
        return False
    words = [word.value for word in command.words]
    scripts = any(value.endswith((".py", ".sh")) or value.startswith("--container-image") for value in words)
    return scripts or command.has(*_PROGRAMS) or words[-1].startswith("$")


def options(script: Script, srun: Command) -> dict[str, str]:
    """Return srun's own options, those before the program, by name; the value is empty if an option has none."""
    found: dict[str, str] = {}
    values = _values(script, [word.value for word in srun.program[1:]], set())
    for value in values:
        if value.startswith("--"):
            name, equals, text = value[2:].partition("=")
            found[name] = text if equals or name in _LONG_FLAGS else next(values, "")
        elif value.startswith("-"):
            letters = value[1:].lstrip(_SHORT_FLAGS)  # -lK1 is -l -K1
            if letters:
                name, text = letters[0], letters[1:]
                found[_LONG.get(name, name)] = text if text or name in _SHORT_WITH_OR_WITHOUT else next(values, "")
        elif not value.startswith("$"):  # a variable that the script does not set may hold options
            break
    return found


def _values(script: Script, values: Sequence[str], replaced: set[str]) -> Iterator[str]:
    """Yield some words, with each variable that holds options, such as `$SRUN_ARGS`, replaced by its words once."""
    for value in values:
        variable = _VARIABLE.fullmatch(value)
        name = variable[1] if variable else ""
        texts = [text for text in script.variables.get(name, []) if text.strip("\"'() ")]  # it often starts empty
        if texts and name not in replaced and all(map(_OPTIONS_FIRST.match, texts)):
            replaced.add(name)
            yield from _values(script, re.findall(r"[^\s\"'()\\]+", " ".join(texts)), replaced)
        else:
            yield value


def nodes(script: Script, srun: Command | None = None) -> int:
    """Return how many nodes the script, or an srun of it, requests; the maximum of a range, and 1 if it is unknown."""
    asked = script.directive("nodes")
    for value in [options(script, srun).get("nodes", "") if srun else "", asked.value if asked else ""]:
        count = number(value.rpartition("-")[2])
        if count is not None:
            return max(1, count)
    return 1


def tasks_per_node(script: Script, srun: Command) -> int:
    """Return how many tasks an srun starts on each node; 1 if no number says it."""
    own = options(script, srun)
    per_node, total = script.directive("ntasks-per-node"), script.directive("ntasks")
    if "ntasks-per-node" in own:
        return number(own["ntasks-per-node"]) or 1
    if "ntasks" not in own and per_node:
        return number(per_node.value) or 1
    tasks = own.get("ntasks") or (total.value if total else "")
    return max(1, (number(tasks) or 1) // nodes(script, srun))
