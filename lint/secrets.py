"""Rules for secrets.  Their values are never shown."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

from jobspec.problems import masked
from jobspec.spec.variables import names_secret
from lint.launches import everything
from lint.rules import Fault, Finding
from lint.shell import Script

# What stands for a value, and is none: <token>, your-key-here, XXXX, path/to/file, a variable.
_PLACEHOLDER = re.compile(
    r"(?is)[<\[{(].*|.*(?:your|change|replace|insert|example|secret|token|password|dummy|here|todo).*|x+|\*+|\.+"
    r"|none|null|true|false|0|[/~].*"
)
# What to write in a script and in a compose file; for a manifest rules.md says it.
_INSTEAD = {
    "node": 'export NAME before you start the script; in the script, only check it: `: "${NAME:?}"`',
    "service": "NAME: ${NAME:?} takes the value from the shell that runs docker compose",
}
_LOGIN = re.compile(r"wandb login (?:--host[= ]\S+ |-\S+ )*([^-\s]\S*)$")


def is_secret(name: str, value: str) -> bool:
    """Return True if a name is that of a secret and the value is one: no variable, path or placeholder."""
    return names_secret(name) and bool(value) and not re.search("[$`]", value) and not _PLACEHOLDER.fullmatch(value)


def hide_secrets(found: Sequence[Finding]) -> list[Finding]:
    """Mask the source line of every finding on a line in which a `secret-…` rule found a value."""
    lines = {each.place.line for each in found if each.rule.startswith("secret-")}
    parts = [masked(each.place, each.place.written.partition("=")[0]) for each in found]
    return [replace(each, place=part) if part.line in lines else each for each, part in zip(found, parts, strict=True)]


def secret_in_file(script: Script) -> Iterator[Fault]:
    for name, _, key, _ in (each for each in script.settings if is_secret(*each[:2])):
        reason = f"the value of {name} is in the file and in its copies"
        reason += "" if script.in_container else "; `scontrol write batch_script` shows it"
        fix = _INSTEAD.get(script.unit if name in script.environment else "node", "").replace("NAME", name)
        yield Fault(masked(script.place(key)), reason, fix)


def secret_is_shown(script: Script) -> Iterator[Fault]:
    """Report secrets in the arguments of programs on a node, where all its users may list them; a pod has no others."""
    for command in everything(script) if not script.in_container else ():
        login = _LOGIN.match(" ".join(word.value for word in command.words)) if command.name == "wandb" else None
        if login and _is_given(login[1]):
            place = masked(script.locate(command.words[1].text.at[0], len("login")))
            yield Fault(place, "everybody on the node sees the key in the list of processes")
        for word, after in zip_longest(command.words, command.words[1:]):
            option, _, value = word.value.partition("=")
            value = value or (after.value if after and not after.value.startswith("-") else "")
            pairs = re.findall(r"(?:^|,)(\w+)=([^,]*)", value) if option == "--export" else [(option, value)]
            for name in (name for name, given in pairs if names_secret(name) and _is_given(given)):
                if option.startswith("--"):
                    place = masked(script.locate(word.text.at[0], len(option)))
                    yield Fault(place, f"everybody on the node sees the value of {name} in the list of processes")


def _is_given(value: str) -> bool:
    """Return True for a value or a variable that holds one."""
    return "$" in value or (bool(value) and not _PLACEHOLDER.fullmatch(value))
