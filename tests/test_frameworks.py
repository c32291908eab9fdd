"""Frameworks of docs/frameworks.md: jobs/scripts/exact_*.py, ended and started again on other numbers of processes.

The samples of each step are noted in the forward.  With `-m long` all pairs of one to four processes are tried, also
with the frameworks' own samplers.
"""

import json
import multiprocessing
import operator
import os
import random
import re
import runpy
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from benchmarks.ranks import run_as_torchrun
from tests.cli import ROOT

_SAMPLES, _EPOCHS, _STEPS_OF_EPOCH = 1003, 2, 16
_PRELOAD = ("torch._dynamo", "torch.distributed.nn", "train.data.sampler", "train.collectives.agreement")
_NEEDS = {"accelerate": "accelerate", "lightning": "lightning", "transformers": "transformers.trainer"}
_LOADER = "DataLoader(data, batch_sampler=sampler, num_workers=2)"
_OWN: dict[str, dict[str, str]] = yaml.safe_load((ROOT / "tests" / "own_samplers.yaml").read_text())
_PAGE = (ROOT / "docs" / "frameworks.md").read_text()


def _script(name: str, *changes: tuple[str, str]) -> str:
    """The text of a script, with changes; of torchdata that of DDP, whose checkpoint holds the loader's position."""
    if name in _OWN:
        script, *own = _OWN[name].items()
        return _script(script[1], *own)
    package = _NEEDS.get(name, name)
    if name != "ddp":
        pytest.importorskip(package, reason=f"{name} is no dependency of the project: pip install {name}")
    if name == "torchdata":
        stateful = "from torchdata.stateful_dataloader import StatefulDataLoader\n"
        changes += ("from torch.utils.data", f"{stateful}from torch.utils.data"), (_LOADER, f"Stateful{_LOADER}")
        changes += ('"sampler": sampler', '"loader": loader'), ("print(", "iter(loader)\nprint(")
    text = (ROOT / "jobs" / "scripts" / f"exact_{name.replace('torchdata', 'ddp')}.py").read_text()
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    return text


def _train(folder: Path, start: int, end: tuple[int, int, bool] | None) -> None:
    """Run the script as a rank; end: the step and the rank that gets the signal, and whether it is SIGKILL."""
    multiprocessing.set_start_method("fork", force=True)
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # it has workers
    os.environ |= {"GROUP_WORLD_SIZE": "1", "CUDA_VISIBLE_DEVICES": ""}
    rank, steps = int(os.environ["RANK"]), 0
    notes = (folder / f"seen-{start}-{rank}").open("w", buffering=1)
    with (folder / f"said-{start}-{rank}").open("w") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)

    def note(module: nn.Module, inputs: tuple[torch.Tensor]) -> None:
        nonlocal steps
        if not isinstance(module, nn.Linear) or module.in_features != 1:
            return
        steps += 1
        notes.write(f"{[round((x + 2) / 4 * (_SAMPLES - 1)) for x in inputs[0].flatten().tolist()]}\n")
        if end is not None and end[:2] == (steps, rank):
            # Two signals to one rank: counting them must not let the ranks disagree.
            for number in (signal.SIGKILL,) if end[2] else (signal.SIGUSR1, signal.SIGTERM):
                os.kill(os.getpid(), number)

    register_module_forward_pre_hook(note)
    sys.argv = ["script.py", str(folder / "kept")]
    runpy.run_path(str(folder / "script.py"), run_name="__main__")


def _started(folder: Path, processes: int, start: int, end: tuple[int, int, bool] | None) -> str:
    run_as_torchrun(processes, (*_PRELOAD, *_NEEDS.values()), _train, folder, start, end, may_fail=True)
    return (folder / f"said-{start}-0").read_text()


def _read(folder: Path, worlds: Sequence[int], ends: Sequence[tuple[int, int, bool] | None]) -> list[int]:
    """Start the script on each number of processes; return samples repeated, skipped, and steps done again by start."""
    lasting, again = list[list[int]](), list[int]()
    for start, (processes, end) in enumerate(zip(worlds, ends, strict=True)):
        said = _started(folder, processes, start, end)
        at = re.search(r"^continues at (?:epoch (\d+), )?step (\d+)$", said, re.M)
        assert at, said
        done = (int(at[1] or 1) - 1) * _STEPS_OF_EPOCH + int(at[2])
        again.append(len(lasting) - done)
        del lasting[done:]
        files = [folder / f"seen-{start}-{rank}" for rank in range(processes)]
        of_ranks = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
        lasting += [[sample for batch in step for sample in batch] for step in zip(*of_ranks, strict=False)]
    seen = Counter((step // _STEPS_OF_EPOCH, sample) for step, samples in enumerate(lasting) for sample in samples)
    return [seen.total() - len(seen), _EPOCHS * _SAMPLES - len(seen), *again]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp", "torchdata", *_NEEDS])
def test_after_a_signal_and_a_kill_each_sample_is_read_once_on_another_number_of_processes(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(_script(name))
    repeated, skipped, *again = _read(tmp_path, (2, 3, 2), ((7, 1, False), (13, 2, True), None))
    assert (repeated, skipped) == (0, 0) and again[1] == 0 < again[2], "only a kill loses steps"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "worlds"),
    [
        (name, (first, then, first))
        for name, first, then in product(("ddp", "torchdata", *_NEEDS, *_OWN), range(1, 5), range(1, 5))
    ],
    ids=str,
)
def test_after_kills_at_random_steps_each_sample_is_read_once_or_as_often_as_the_page_says_of_other_samplers(
    name: str, worlds: tuple[int, int, int], tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    (tmp_path / "script.py").write_text(_script(name))
    draw = random.Random(f"{worlds} {pytestconfig.getoption('--seed')}")
    kills = [(draw.randrange(1, _STEPS_OF_EPOCH), draw.randrange(processes), True) for processes in worlds[:2]]
    row = re.search(rf"^{name} \| (\d+), (\d+) \| (\d+), (\d+)$", _PAGE, re.M)
    at_most = [int(number) for number in row.groups()] if row else [0] * 4
    found = _read(tmp_path, worlds, (*kills, None))[:2]
    assert all(map(operator.le, found, at_most[:2] if worlds[0] == worlds[1] else at_most[2:])), found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "before", "after", "says"),
    [
        ("accelerate", _LOADER, f"accelerator.prepare({_LOADER})", "would be shared out again"),
        (
            "accelerate",
            f"loader = {_LOADER}",
            f"accelerator.dataloader_config.dispatch_batches = True\nloader = accelerator.prepare({_LOADER})",
            "would be shared out again",
        ),
        ("lightning", '"use_distributed_sampler": False, ', "", "would be shared out again"),
        ("transformers", "return loader", "return self.accelerator.prepare(loader)", "would be shared out again"),
    ],
)
def test_a_framework_that_would_share_the_batches_out_again_is_refused(
    name: str, before: str, after: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(_script(name, (before, after)))
    _started(tmp_path, 2, 0, None)
    assert says in "".join(file.read_text() for file in tmp_path.glob("said-0-*"))
