"""Read the flags into a TrainConfig, or report every mistake in them at once."""

import argparse
import re
import sys
from collections.abc import Callable
from os.path import expanduser
from typing import Any, NoReturn

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from train.config import PATHS, TrainConfig, choices, expected, flag, nearest
from train.errors import UserError


def from_argv(argv: list[str] | None = None) -> TrainConfig:
    """Read the flags.  Raises UserError with all problems in them."""
    words = sys.argv[1:] if argv is None else argv
    parsed, unknown = _parser().parse_known_args(words)
    given = {key: value for key, value in vars(parsed).items() if value is not None}
    return checked(given, flag, _unknown_words(words, unknown))


def checked(given: dict[str, Any], written: Callable[[str], str], problems: list[str]) -> TrainConfig:
    """Return the settings `given`; `written`: how a key was written.  Raises UserError with these and other problems.

    A leading ~ in a path is the home folder, because a shell does not replace it after =.
    """
    # Path.expanduser would raise for an unknown user.
    given |= {key: expanduser(given[key]) for key in PATHS if isinstance(given.get(key), str)}  # noqa: PTH111
    try:
        config = TrainConfig.model_validate(given)
    except ValidationError as error:
        problems += [_sentence(problem, written) for problem in error.errors()]
    if problems:
        number = f"{len(problems)} problem{'s' * (len(problems) > 1)}"
        raise UserError("\n".join([f"{number} with the settings; nothing was run", *problems]))
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


def _sentence(problem: ErrorDetails, written: Callable[[str], str]) -> str:
    """Return one line for one pydantic error: which setting, what is wrong, what was probably meant."""
    key = str(problem["loc"][0] if problem["loc"] else problem["ctx"]["key"])
    if problem["type"] == "keys_disagree":
        return f"  {written(key)}{problem['msg'].removeprefix(key)}"
    if problem["type"] == "extra_forbidden":
        said, meant = "unknown key", nearest(key, TrainConfig.model_fields)
    else:
        wanted = expected(problem)
        said = problem["msg"] if wanted is None else f'"{problem["input"]}" is not accepted; it must be {wanted}'
        is_a_name = problem["type"] in ("unknown_name", "literal_error")
        meant = nearest(str(problem["input"]), choices(key)) if is_a_name else None
    return f"  {written(key)}: {said}" + (f'; did you mean "{meant}"?' if meant else "")


# Flags that are no settings of a run.
_NOT_SETTINGS = ("--procs", "--check-exact", "--help")
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
        usage="python -m train [--procs N] [--check-exact] [--SETTING VALUE]...",
        description="Train a model on one or many processes.",
        allow_abbrev=False,
    )
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
