"""Rules for secrets in scripts.  The rules for manifests, in kubernetes.py and compose.py, use the names here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from jobspec.problems import Problem, masked
from jobspec.spec.secret_names import names_secret
from lint.rules import Fault, rule
from lint.shell import Script


def hide_secrets(problems: Sequence[Problem]) -> list[Problem]:
    """Mask the source line of every problem on a line in which a `secret-in-…` rule found a value."""
    lines = {problem.place.line for problem in problems if "[secret-in-" in problem.message}
    return [_hidden(problem) if problem.place.line in lines else problem for problem in problems]


def _hidden(problem: Problem) -> Problem:
    return replace(problem, place=masked(problem.place, problem.place.written.partition("=")[0]))


@rule("https://github.com/NVIDIA-BioNeMo/nvSubquadratic/pull/34")
def secret_in_script(script: Script) -> Iterator[Fault]:
    for name, word in script.assignments():
        if names_secret(name) and word.assigned_value and "$" not in word.assigned_value:
            reason = f"the value of {name} is in the file and in its copies"
            reason += "" if script.in_container else "; `scontrol write batch_script` shows it"
            fix = f'export {name} before you start the script; in the script, only check it: `: "${{{name}:?}}"`'
            yield Fault(masked(script.place(word, name)), reason, fix)


@rule("https://github.com/NVIDIA-NeMo/Gym/issues/2909")
def secret_in_arguments(script: Script) -> Iterator[Fault]:
    for command in script.commands:
        for number, word in enumerate(command.words):
            option, equals, value = word.value.partition("=")
            following = "" if equals else "".join(after.value for after in command.words[number + 1 : number + 2])
            if word.text.startswith("--") and names_secret(option) and (value or following) and not word.assigned:
                reason = f"everybody on the node sees the value of {option} in the list of processes"
                yield Fault(masked(script.place(word, option)), reason, "let the program read it from its environment")
            for name in re.findall(r"[,=](\w+)=", word.value) if option == "--export" else ():
                if names_secret(name):
                    reason = f"srun's arguments hold the value of {name}, which everybody on the node sees"
                    yield Fault(
                        masked(script.place(word, name)), reason, "--export=ALL passes the environment on as it is"
                    )


@rule("https://github.com/pytorch/xla/pull/6410")
def trace_prints_secrets(script: Script) -> Iterator[Fault]:
    names = [name for name, _ in script.assignments() if names_secret(name)]
    names += [
        found.name
        for command in script.commands
        for word in command.words
        for found in word.expansions
        if names_secret(found.name)
    ]
    for command in script.commands if names else ():
        for word in command.words[1:]:
            if command.name == "set" and (re.fullmatch(r"-[a-z]*x[a-z]*", word.value) or word.value == "xtrace"):
                reason = f"set -x prints every command into the log, and with it the value of {names[0]}"
                yield Fault(script.place(word), reason, "leave set -x out")
