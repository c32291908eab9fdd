"""--precision and --deterministic reach torch's own switches, without a warning, before CUDA starts."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.cli import ROOT, environment

# Asked for by the names of torch 2.6 and, where there are any, by those of 2.9.
_LOOK = """
import json, os, sys
import torch
from train.flags import from_argv
from train.loop.numerics import set_numerics
set_numerics(from_argv(sys.argv[1:]))
assert not torch.cuda.is_initialized()
with torch.backends.cudnn.flags(enabled=True):
    pass
newer = [torch.backends.cuda.matmul, *(getattr(torch.backends.cudnn, name, None) for name in ("conv", "rnn"))]
print(json.dumps({
    "tf32": [torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32],
    "newer": [flags.fp32_precision == "tf32" for flags in newer if hasattr(flags, "fp32_precision")],
    "deterministic": [
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.deterministic,
        os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    ],
    "benchmark": torch.backends.cudnn.benchmark,
}))
"""


def _look(*flags: str, **extra: str) -> dict[str, Any]:
    command = [sys.executable, "-W", "error", "-c", _LOOK, *flags]
    looked: dict[str, Any] = json.loads(subprocess.check_output(command, env=environment(**extra), cwd=ROOT))
    return looked


def test_fp32_is_full_and_nothing_is_deterministic_unless_asked_for() -> None:
    seen = _look("--precision=fp32")
    assert seen["tf32"] == [False, False] and not any(seen["newer"])
    assert seen["deterministic"] == [False, False, None]


@pytest.mark.parametrize(("given", "workspace"), [({}, ":4096:8"), ({"CUBLAS_WORKSPACE_CONFIG": ":16:8"}, ":16:8")])
def test_tf32_and_deterministic_are_set_and_the_users_workspace_stays(given: dict[str, str], workspace: str) -> None:
    seen = _look("--precision=tf32", "--deterministic", **given)
    assert seen["tf32"] == [True, True] and all(seen["newer"])
    assert seen["deterministic"] == [True, True, workspace] and not seen["benchmark"]
