"""The words with which torchrun starts its processes: by its own parser and its own templates, without a process."""

import os
from collections.abc import Sequence
from functools import cache
from pathlib import PurePath
from unittest import mock

from torch.distributed.elastic.utils import macros
from torch.distributed.run import config_from_args, get_args_parser

LOCAL_RANK = "1"

# Its defaults come from PET_ variables, of which these words need none.
_PARSER = get_args_parser()


def words(argv: Sequence[str]) -> list[str]:
    """The words of a process, Python's own first, from those of what a node runs.

    Where no torchrun is among them, they are a process's already.
    """
    at = next((at for at, word in enumerate(argv) if PurePath(word).name == "torchrun"), None)
    return list(argv) if at is None else list(_words(tuple(argv[at + 1 :])))


@cache
def _words(argv: tuple[str, ...]) -> tuple[str, ...]:
    with mock.patch.dict(os.environ):  # torchrun sets some
        parsed = _PARSER.parse_args(argv)
        parsed.log_dir = parsed.log_dir or os.devnull  # otherwise it makes a folder in /tmp, and leaves it there
        _, first, others = config_from_args(parsed)
    words = macros.substitute(others, LOCAL_RANK)
    return (str(first), *words) if parsed.no_python else tuple(words)
