"""Rules for secrets.  Their values are never shown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from jobspec.problems import masked
from jobspec.spec.secret_names import names_secret
from lint.launches import everything
from lint.rules import Fault, Finding, rule
from lint.shell import Script

# What stands for a value, and is none: <token>, your-key-here, XXXX, path/to/file.
_PLACEHOLDER = re.compile(
    r"(?i)[<\[{(].*|.*(?:your|change|replace|insert|example|secret|token|password|dummy|here|todo).*|x+|\*+|\.+"
    r"|none|null|true|false|0|[/~].*"
)


def is_secret(name: str, value: str) -> bool:
    """Return True if a name is that of a secret and the value is one: no variable, path or placeholder."""
    return names_secret(name) and bool(value) and not re.search("[$`]", value) and not _PLACEHOLDER.fullmatch(value)


def hide_secrets(found: Sequence[Finding]) -> list[Finding]:
    """Mask the source line of every finding on a line in which a `secret-…` rule found a value."""
    lines = {each.place.line for each in found if each.rule.startswith("secret-")}
    return [_hidden(each) if each.place.line in lines else each for each in found]


def _hidden(found: Finding) -> Finding:
    return replace(found, place=masked(found.place, found.place.written.partition("=")[0]))


@rule
def secret_in_file(script: Script) -> Iterator[Fault]:
    for name, word in script.assignments():
        if is_secret(name, word.value):
            reason = f"the value of {name} is in the file and in its copies"
            reason += "" if script.in_container else "; `scontrol write batch_script` shows it"
            fix = f'export {name} before you start the script; in the script, only check it: `: "${{{name}:?}}"`'
            yield Fault(masked(script.locate(word.text.at[0], len(name))), reason, fix)


@rule
def secret_is_shown(script: Script) -> Iterator[Fault]:
    speaks = not script.in_container and re.search("(?i)key|secret|token|passw", script.text)
    commands = everything(script) if speaks else []
    words = [word for command in commands for word in command.words]
    known = [name for name, word in script.assignments() if is_secret(name, word.value)]
    known += [name for word in words for name, _ in word.expansions if names_secret(name)]
    for command in commands:
        values = [word.value for word in command.words]
        for at, word in enumerate(command.words):
            option, equals, value = word.value.partition("=")
            given = value if equals else "".join(each for each in values[at + 1 : at + 2] if each[:1] != "-")
            real = given and ("$" in given or not _PLACEHOLDER.fullmatch(given)) and not word.assigned
            if real and option.startswith("--") and names_secret(option):
                place = masked(script.locate(word.text.at[0], len(option)))
                yield Fault(place, f"everybody on the node sees the value of {option} in the list of processes")
            for name in re.findall(r"[,=](\w+)=", word.value) if option == "--export" else ():
                if names_secret(name):
                    place = masked(script.locate(word.text.at[0], len(option)))
                    yield Fault(place, f"srun's arguments hold the value of {name}, which everybody on the node sees")
            if known and values[0] == "set" and re.fullmatch(r"-[a-z]*x[a-z]*|xtrace", word.value):
                reason = f"set -x prints every command into the log, and with it the value of {known[0]}"
                yield Fault(script.place(word.text), reason)
