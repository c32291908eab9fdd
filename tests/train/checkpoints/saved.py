"""Small checkpoints for tests, and which of them a resumed run finds."""

import io
from pathlib import Path
from typing import Any

import torch

from train.checkpoints.folder import Checkpoints, find_checkpoint


def save(folder: Path, *steps: int, keep: int = 10) -> None:
    """One checkpoint for each step, holding that step and a few weights."""
    checkpoints = Checkpoints(folder, keep)
    for step in steps:
        checkpoints.save(step, {"step": step, "model": {"w": torch.full((9,), float(step))}})
    checkpoints.wait()


def step_in(content: io.BytesIO | None) -> int | None:
    if content is None:
        return None
    state: dict[str, Any] = torch.load(content, weights_only=True)
    assert torch.equal(state["model"]["w"], torch.full((9,), float(state["step"])))
    return int(state["step"])


def resumed(folder: Path) -> tuple[int | None, list[str]]:
    """The step that --resume=auto finds, and what is told about it."""
    told: list[str] = []
    return step_in(find_checkpoint("auto", folder, told.append)), told


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
