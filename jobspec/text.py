"""Template → text: the one Jinja environment, and the filters that make any value safe where it is put.

A template puts in every value of a spec through one of the filters: `sh` and `argv` in shell text, `directive`
in a line of sbatch's options, `yaml` in YAML, `kubelet` and `compose` in YAML whose reader expands variables,
`comment` in a comment line.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

TEMPLATES = Path(__file__).parent.parent / "templates"

_WIDTH = 100  # columns of a command before it goes on in the next line
# What YAML takes for a line break or refuses outside an escape; JSON lets it stand.
_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def render_template(name: str, values: Mapping[str, Any]) -> str:
    """The text of templates/<name> with these values."""
    return _environment().get_template(name).render(values)


def sh(value: str | int) -> str:
    """One word of a shell command."""
    return shlex.quote(str(value))


def argv(words: Sequence[str], indent: int = 2) -> str:
    """Words of a shell command, going on in further lines (indented by `indent`) where they get long."""
    lines = [""]
    for word in map(sh, words):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > _WIDTH - indent:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return f" \\\n{' ' * indent}".join(lines)


def directive(value: str) -> str:
    """The value of an option in a line `#SBATCH --option=value`.

    sbatch reads these lines by itself, not as a shell does: a backslash counts between quotes, too, and `#` begins
    a comment.  Source: Slurm, src/sbatch/opt.c, `get_argument`.
    """
    if re.fullmatch(r"[A-Za-z0-9_.,:@%+/=-]+", value):
        return value
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def yaml(value: Any) -> str:
    """A value in YAML: JSON, which no reader of YAML takes for another type."""
    text = json.dumps(value, ensure_ascii=False)
    return _NOT_IN_YAML.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def kubelet(value: str) -> str:
    """A word of a pod's command, args or env in YAML.

    The kubelet puts a variable in for `$(NAME)`, reads `$$` as `$`, and breaks a non-ASCII character that follows
    a lone `$` (it copies one byte as if it were a character): every `$` is doubled.
    Source: third_party/forked/golang/expansion/expand.go in kubernetes/kubernetes.
    """
    return yaml(value.replace("$", "$$"))


def compose(value: Any) -> str:
    """A value in YAML that compose reads: it takes `$` for the start of a variable in any text, and `$$` for `$`."""
    return yaml(value).replace("$", "$$")


def comment(text: str) -> str:
    """Text inside a comment line: nothing in it ends the line."""
    return "".join(char if char.isprintable() else "?" for char in text)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,  # a misspelt variable is an error, not an empty text
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # the artifacts are no HTML; the filters below quote
    )
    environment.filters.update(
        sh=sh, argv=argv, directive=directive, yaml=yaml, kubelet=kubelet, compose=compose, comment=comment
    )
    return environment
