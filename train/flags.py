"""Read the flags and a YAML file into a TrainConfig, or report every mistake in them at once."""

import argparse
import re
import sys
from collections.abc import Mapping
from os.path import expanduser
from pathlib import Path
from typing import Any, NoReturn

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from train.config import PATHS, TrainConfig, choices, expected, flag, nearest
from train.errors import UserError


def from_argv(argv: list[str] | None = None) -> TrainConfig:
    """Read the flags and the file of `--config`; flags win.  Raises UserError with all problems and their places."""
    words = sys.argv[1:] if argv is None else argv
    parsed, unknown = _parser().parse_known_args(words)
    given = {key: value for key, value in vars(parsed).items() if value is not None}
    problems = _unknown_words(words, unknown)
    # A shell replaces ~ neither after = nor in a file.  Path.expanduser would raise for an unknown user.
    file = given.pop("config", None)
    where = {key: flag(key) for key in given}
    if file is not None:
        file = expanduser(file)  # noqa: PTH111
        values, lines = _read_yaml(Path(file))
        where = {key: f"{file}:{line}: {key}" for key, line in lines.items()} | where
        given = values | given
    return checked(given, where, problems)


def checked(given: dict[str, Any], where: Mapping[str, str], problems: list[str]) -> TrainConfig:
    """Return the settings `given`; `where` has the place of each.  Raises UserError with these and other problems."""
    given |= {key: expanduser(given[key]) for key in PATHS if isinstance(given.get(key), str)}  # noqa: PTH111
    try:
        config = TrainConfig.model_validate(given)
    except ValidationError as error:
        problems += [_sentence(problem, where) for problem in error.errors()]
    if problems:
        raise UserError(_listed(problems, "with the settings; nothing was run"))
    return config


def split_launch(argv: list[str]) -> tuple[int | None, bool, list[str]]:
    """Return the N of `--procs N`, if given, whether --check-exact is there (for which N is 2), and the other words.

    Raises UserError if N is not a number above 0.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--procs")
    parser.add_argument("--check-exact", action="store_true")
    parsed, others = parser.parse_known_args(argv)
    if parsed.procs is None:
        return 2 if parsed.check_exact else None, parsed.check_exact, others
    # Python refuses to read integers of thousands of digits.
    if not re.fullmatch("0*[1-9][0-9]{,8}", parsed.procs):
        raise UserError(f'--procs: "{parsed.procs}" is not accepted; it must be a whole number above 0')
    return int(parsed.procs), parsed.check_exact, others


def _listed(problems: list[str], about: str) -> str:
    return "\n".join([f"{len(problems)} problem{'s' * (len(problems) > 1)} {about}", *problems])


def _unknown_words(words: list[str], unknown: list[str]) -> list[str]:
    """Return one line for each unknown flag and stray word; `unknown`: what the parser left over of `words`."""
    problems = []
    end = 0
    for word in unknown:
        at = words.index(word, end)
        before, end = words[at - 1] if at else "", at + 1
        if word.startswith("-"):
            name = word.partition("=")[0]
            meant = nearest(name, [*map(flag, TrainConfig.model_fields), *_NOT_SETTINGS])
            hint = f"did you mean {meant}?" if meant else "`python -m train --help` lists the flags"
            problems.append(f"  {name}: unknown flag; {hint}")
        elif before in _SWITCHES:
            on, off = _SWITCHES[before]
            problems.append(f"  {word}: {before} takes no value; write {on} or {off} alone")
        elif not (before in unknown and before.startswith("-") and "=" not in before):
            # The word after an unknown flag is probably the flag's value, and needs no second line.
            problems.append(
                f"  {word}: no flag comes before it; write --SETTING VALUE, with quotes around a VALUE that has spaces"
            )
    return problems


def _sentence(problem: ErrorDetails, where: Mapping[str, str]) -> str:
    """Return one line for one pydantic error: where the value was given, what is wrong, what was probably meant."""
    key = str(problem["loc"][0] if problem["loc"] else problem["ctx"]["key"])
    place = where.get(key, key)
    if problem["type"] == "keys_disagree":
        return f"  {place}{problem['msg'].removeprefix(key)}"
    if problem["type"] == "extra_forbidden":
        if flag(key) in _NOT_SETTINGS:
            return f"  {place}: {flag(key)} is a flag of the command line, and cannot stand in a file"
        said, meant = "unknown key", nearest(key, TrainConfig.model_fields)
    else:
        wanted = expected(problem)
        said = problem["msg"] if wanted is None else f'"{problem["input"]}" is not accepted; it must be {wanted}'
        is_a_name = problem["type"] in ("unknown_name", "literal_error")
        meant = nearest(str(problem["input"]), choices(key)) if is_a_name else None
    return f"  {place}: {said}" + (f'; did you mean "{meant}"?' if meant else "")


# Flags that are no settings of a run.
_NOT_SETTINGS = ("--config", "--procs", "--check-exact", "--help")
# Flags without a value → how to turn the same setting on and off.
_SWITCHES = {
    name: (flag(key), flag(f"no_{key}"))
    for key, field in TrainConfig.model_fields.items()
    if field.annotation is bool
    for name in (flag(key), flag(f"no_{key}"))
}

# Titles of groups in --help, by the first setting of each group, in the order of TrainConfig.
_GROUPS = {
    "model": "model and data",
    "epochs": "training",
    "strategy": "processes and devices",
    "run_dir": "records and checkpoints",
    "rendezvous_timeout_s": "timeouts",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; `python -m train --help` lists the flags")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m train",
        usage="python -m train [--procs N] [--check-exact] [--config FILE.yaml] [--SETTING VALUE]...",
        description="Train a model on one or many processes.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE.yaml", help="a YAML file with the same settings; flags override it")
    parser.add_argument(
        "--procs",
        metavar="N",
        help="start N processes on this machine, as `torchrun --standalone --nproc-per-node N` does",
    )
    parser.add_argument(
        "--check-exact",
        action="store_true",
        default=None,
        help="with --logical-world: train five steps on 1 and on 2 processes (or N), and compare their bits",
    )
    group: argparse._ArgumentGroup | None = None
    for key, field in TrainConfig.model_fields.items():
        group = parser.add_argument_group(_GROUPS[key]) if key in _GROUPS else group
        assert group is not None
        names = f"; one of {', '.join(choices(key))}" if choices(key) else ""
        default = "" if field.default is None else f" (default: {field.default})"
        text = f"{field.description}{names}{default}".replace("%", "%%")
        if field.annotation is bool:
            group.add_argument(flag(key), action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            group.add_argument(flag(key), metavar=key.upper(), help=text)
    return parser


def _read_yaml(file: Path) -> tuple[dict[str, str], dict[str, int]]:
    """Return the values of a flat YAML mapping as text (typed later, exactly like flags), and the line of each key."""
    try:
        root = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    except OSError as error:
        raise UserError(f"--config: cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"--config: cannot read {file}: not UTF-8 text") from None
    except (ValueError, OverflowError):
        raise UserError(f"--config: {file} is not YAML: a number in an escape or a %YAML line is too large") from None
    except RecursionError:
        raise UserError(f"--config: {file} must be a mapping of keys to values, not nested lists") from None
    except yaml.YAMLError as error:
        raise UserError(f"--config: {file} is not YAML: {' '.join(str(error).split())}") from None
    if root is None:
        return {}, {}
    if not isinstance(root, yaml.MappingNode):
        raise UserError(f"--config: {file} must be a mapping of keys to values")
    values: dict[str, str] = {}
    lines: dict[str, int] = {}
    problems = []
    for key, value in root.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or not key.value.isprintable():
            problems.append(f"  {file}:{line}: a key must be a single word")
        elif key.value == "train":
            problems.append(f"  {file}:{line}: train: this is a job spec, for `render-job TARGET {file}`")
        elif not isinstance(value, yaml.ScalarNode):
            problems.append(f"  {file}:{line}: {key.value}: the value must be a single word or number")
        elif "\0" in value.value:
            problems.append(f"  {file}:{line}: {key.value}: the value holds a zero byte, which no setting allows")
        elif key.value in lines:
            problems.append(f"  {file}:{line}: {key.value}: given twice, first on line {lines[key.value]}")
        else:
            lines[key.value] = line
            if value.style or value.value not in ("", "~", "null"):
                values[key.value] = value.value
    if problems:
        raise UserError(_listed(problems, f"in {file}"))
    return values, lines
