"""After a failure on a GPU: the reason comes before anything waits for it, and a save that cannot be is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from train.checkpoints.folder import Checkpoints
from train.config import TrainConfig
from train.loop import saving
from train.loop.position import Position
from train.world.environment import World

_CUDA = torch.device("cuda", 0)


def _fail(folder: Path, state_dict: Callable[[], dict[str, Any]], **config: str) -> list[str]:
    engine = mock.Mock(device=_CUDA, is_updating=False)
    kept = saving.Saving(TrainConfig.model_validate(config), World(), engine, Position(None, steps=7), mock.Mock())
    kept.checkpoints, kept.state_dict = Checkpoints(folder, 1), state_dict  # type: ignore[method-assign]
    kept.save_after_failure(RuntimeError("rank 1 is gone"))
    return [path.name for path in folder.iterdir()]


@pytest.mark.parametrize(("idle", "saved"), [(False, []), (True, ["step-00000007"])])
def test_the_reason_is_printed_before_the_device_is_asked_and_a_busy_device_means_no_save(
    idle: bool, saved: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed: list[str] = []

    def is_idle(device: torch.device) -> bool:
        printed.append(capsys.readouterr().out)
        return idle

    monkeypatch.setattr(saving, "_is_idle", is_idle)  # in place of CUDA's answer
    assert _fail(tmp_path, lambda: {"step": 7} if idle else pytest.fail("waits for the device")) == saved
    assert printed == ["rank 0 failed: rank 1 is gone\n"]
    words = "saved the last complete step, 7" if idle else "nothing is saved now, because the GPU waits"
    assert words in capsys.readouterr().out


def test_without_the_parts_of_other_ranks_nothing_is_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _fail(tmp_path, lambda: pytest.fail("has only its part"), strategy="fsdp") == []
    assert "nothing is saved now, because other ranks hold parts of the model" in capsys.readouterr().out


@pytest.mark.cuda
def test_a_device_that_does_not_end_its_work_is_not_waited_for(tmp_path: Path) -> None:
    torch.cuda._sleep(60_000_000_000)  # half a minute, as a kernel of NCCL that waits for a rank that is gone
    assert _fail(tmp_path, lambda: pytest.fail("waits for the device")) == []
    assert not torch.cuda.current_stream().query(), "it still works"
    torch.cuda.synchronize(_CUDA)
    assert _fail(tmp_path, lambda: {"step": 7}) == ["step-00000007"]
