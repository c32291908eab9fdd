"""Render templates: the one Jinja environment, and the filters that make any value safe where it is inserted.

A template inserts every value of a spec through one of these filters.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from yaml import safe_load as load_yaml

from jobspec.spec.shell import run_lines

_WIDTH = 104  # columns of a command before it continues on the next line; what stands before it takes up to 16
# Words that a reader of YAML 1.1 or 1.2 takes as they are, between brackets too: no number, date or sign of YAML.
_PLAIN = re.compile(r"(?:[A-Za-z/_]|--?[A-Za-z])(?:[\w./=+@%:-]*[\w./=+@%-])?|[1-9][0-9]*[A-Za-z]+", re.ASCII)
_NOT_TEXT = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}  # in any case
# Unescaped, YAML reads these as line breaks or rejects them; json.dumps does not escape them.
_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def sh(value: str | int) -> str:
    return shlex.quote(str(value))


def argv(words: Sequence[str], indent: int = 2) -> str:
    """Quote the words of a shell command.  A long command continues on further lines, indented by `indent`."""
    return folded([sh(word) for word in words], indent)


def by_flag(words: Sequence[str], indent: int = 2) -> str:
    """Quote the words of a shell command, each flag with its value on a line: people edit and compare them."""
    lines: list[list[str]] = []
    for word in words:
        if word.startswith("-") or not lines:
            lines.append([])
        lines[-1].append(word)
    return f" \\\n{' ' * indent}".join(argv(line, indent) for line in lines)


def assignments(variables: Mapping[str, str], indent: int = 2) -> str:
    return folded([f"{name}={sh(value)}" for name, value in variables.items()], indent)


def folded(words: Sequence[str], indent: int = 2) -> str:
    """Join words that are bash already.  A long command continues on further lines, indented by `indent`."""
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + 1 + len(word) > _WIDTH - indent:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return f" \\\n{' ' * indent}".join(lines)


def directive(value: str) -> str:
    """Quote the value of an option in a line `#SBATCH --option=value`.

    sbatch does not read these lines as a shell does: a backslash escapes also inside quotes, and `#` begins a comment.
    Source: Slurm, src/sbatch/opt.c, `get_argument`.
    """
    if re.fullmatch(r"[A-Za-z0-9_.,:@%+/=-]+", value):
        return value
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def yaml(value: Any) -> str:
    """Write a value as every YAML reader reads it with the same type: a word as it is, anything else as JSON."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT:
        return value
    text = json.dumps(value, ensure_ascii=False)
    return _NOT_IN_YAML.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def lines(values: Mapping[str, Any] | Sequence[Any], indent: int, quote: str = "yaml") -> str:
    """Write a mapping or list in YAML, each element after a line break, by the filter `quote`."""
    write = {"yaml": yaml, "kubelet": kubelet, "compose": compose}[quote]
    pairs = [f"{write(key)}: {write(value)}" for key, value in values.items()] if isinstance(values, Mapping) else None
    return "".join(f"\n{' ' * indent}{text}" for text in pairs or [f"- {write(value)}" for value in values])


def optional(value: Any, key: str, indent: int) -> str:
    """Write the line `key: value` in YAML, after a line break; nothing for None.  A template says `{{- value | …`."""
    return "" if value is None else f"\n{' ' * indent}{key}: {yaml(value)}"


def block(text: str, indent: int) -> str:
    """Write text in YAML as a literal block, which people can read, or as JSON if a block would change the text."""
    lines = text.split("\n")
    plain = all(line.replace("\t", " ").isprintable() for line in lines) and not _NOT_IN_YAML.search(text)
    if not plain or not text.strip():
        return yaml(text)
    kept = len(text) - len(text.rstrip("\n"))  # line breaks at the end
    chomping = {0: "-", 1: ""}.get(kept, "+")
    body = "\n".join(f"{' ' * indent}{line}" if line else "" for line in (lines[:-1] if kept else lines))
    return f"|2{chomping}\n{body}"


def merged(pod: str, patch: Mapping[str, Any], container: str) -> str:
    """Patch the spec in the YAML of a pod template.  An empty patch leaves the YAML unchanged, with its comments."""
    if not patch:
        return pod
    from jobspec.kubernetes import pod_patch  # only here: no other target has pods

    template = load_yaml(pod)
    template["spec"] = pod_patch.merge(template["spec"], patch, container)
    return "".join(f"{line}\n" for line in _yaml_lines(template, ""))


def _yaml_lines(value: Any, indent: str) -> Iterator[str]:
    pairs = value.items() if isinstance(value, Mapping) else ((None, element) for element in value)
    for key, below in pairs:
        head = f"{indent}-" if key is None else f"{indent}{yaml(key)}:"
        if not isinstance(below, Mapping | list) or not below:
            yield f"{head} {yaml(below)}"
        elif key is None:
            first, *rest = _yaml_lines(below, f"{indent}  ")
            yield f"{head} {first.lstrip()}"
            yield from rest
        else:
            yield head
            yield from _yaml_lines(below, f"{indent}  ")


def kubelet(value: str) -> str:
    """Write a word of a pod's command, args or env in YAML.

    The kubelet replaces `$(NAME)` with a variable and reads `$$` as `$`.  It also breaks a non-ASCII character after a
    lone `$`, because it copies a single byte.  So every `$` is doubled.
    Source: third_party/forked/golang/expansion/expand.go in kubernetes/kubernetes.
    """
    return yaml(value.replace("$", "$$"))


def compose(value: Any) -> str:
    """Write a value in YAML for compose, which reads `$` as the start of a variable in any text, and `$$` as `$`."""
    return yaml(value).replace("$", "$$")


def comment(text: str) -> str:
    """Write text inside a comment line: nothing in it ends the line."""
    return "".join(char if char.isprintable() else "?" for char in text)


def comments(texts: Sequence[str]) -> str:
    """Write each text as a comment line, after a line break.  A template says `{{- texts | comments }}`."""
    return "".join(f"\n# {comment(text)}" for text in texts)


@cache
def environment(templates: Path) -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        undefined=jinja2.StrictUndefined,  # a misspelt variable is an error, not empty text
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        comment_start_string="<#",  # bash has ${#name}
        comment_end_string="#>",
        autoescape=False,  # the artifacts are not HTML; the filters below quote
    )
    for_shells = sh, argv, by_flag, folded, assignments, directive, run_lines, comment, comments
    for_yaml = yaml, lines, optional, block, merged, kubelet, compose
    made.filters.update({function.__name__: function for function in (*for_shells, *for_yaml)})
    return made
