"""The rule for secrets.  Their values are never shown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from jobspec.problems import masked
from jobspec.spec.secret_names import names_secret
from lint.rules import Fault, Finding
from lint.shell import Script

# What stands for a value, and is none: <token>, your-key-here, XXXX, path/to/file, a variable.
_PLACEHOLDER = re.compile(
    r"(?is)[<\[{(].*|.*(?:your|change|replace|insert|example|secret|token|password|dummy|here|todo).*|x+|\*+|\.+"
    r"|none|null|true|false|0|[/~].*"
)


def is_secret(name: str, value: str) -> bool:
    """Return True if a name is that of a secret and the value is one: no variable, path or placeholder."""
    return names_secret(name) and bool(value) and not re.search("[$`]", value) and not _PLACEHOLDER.fullmatch(value)


def hide_secrets(found: Sequence[Finding]) -> list[Finding]:
    """Mask the source line of every finding on a line in which the rule found a value."""
    lines = {each.place.line for each in found if each.rule == "secret-in-file"}
    parts = [masked(each.place, each.place.written.partition("=")[0]) for each in found]
    return [replace(each, place=part) if part.line in lines else each for each, part in zip(found, parts, strict=True)]


def secret_in_file(script: Script) -> Iterator[Fault]:
    for name, words in script.assigned.items():
        for word in (word for word in words if is_secret(name, word.value)):
            reason = f"the value of {name} is in the file and in its copies"
            reason += "" if script.in_container else "; `scontrol write batch_script` shows it"
            fix = f'export {name} before you start the script; in the script, only check it: `: "${{{name}:?}}"`'
            yield Fault(masked(script.locate(word.text.at[0], len(name))), reason, fix)
