"""Read the flags into a TrainConfig, or report every mistake in them at once."""

import argparse
import re
from collections.abc import Callable
from os.path import expanduser
from typing import Any, NoReturn

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from train.config import PATHS, TrainConfig, choices, expected, flag, nearest
from train.errors import UserError


def from_argv(argv: list[str] | None = None) -> TrainConfig:
    """Read the flags.  Raises UserError with all problems in them."""
    parsed, unknown = _parser().parse_known_args(argv)
    given = {key: value for key, value in vars(parsed).items() if value is not None}
    return checked(given, flag, _unknown_words(unknown))


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
    """Return the N of `--procs N`, if given, whether --check-exact is there (for which N is 2), and the other words."""
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


def _unknown_words(unknown: list[str]) -> list[str]:
    """Return one line for each unknown flag and stray word that the parser has left over."""
    problems = []
    for word in unknown:
        name = word.partition("=")[0]
        if word.startswith("-"):
            meant = nearest(name, [*map(flag, TrainConfig.model_fields), *_NOT_SETTINGS])
            hint = f"did you mean {meant}?" if meant else "`python -m train --help` lists the flags"
            problems.append(f"  {name}: unknown flag; {hint}")
        else:
            why = "no flag takes this word: --NAME and --no-NAME stand alone, and a VALUE with spaces needs quotes"
            problems.append(f"  {word}: {why}")
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
