"""`--export` writes the weights that other programs load; `--evaluate-only` gives the accuracy that training gave."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.cli import records
from tests.ranks import train_on_ranks
from train import models
from train.records.metrics import weights_sha256

_FLAGS = ["--model=mlp", "--dataset=synthetic", "--device=cpu", "--batch-size=500", "--lr=0.1"]


def test_exported_weights_are_those_of_the_end_and_a_bare_model_loads_them(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    file = tmp_path / "weights.safetensors"
    train_on_ranks(2, *_FLAGS, f"--export={file}", f"--run-dir={tmp_path}")
    exported = load_file(file)
    (end,) = records(tmp_path, "end")
    assert weights_sha256(exported) == end["weights_sha256"]
    models.build("mlp", (1, 28, 28), 10, None).load_state_dict(exported)


def test_a_checkpoint_is_evaluated_and_exported_without_training(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    kept = [f"--run-dir={tmp_path}", f"--checkpoint-dir={tmp_path / 'checkpoints'}", "--resume=auto", "--ema=0.9"]
    train_on_ranks(1, *_FLAGS, *kept)
    train_on_ranks(2, *_FLAGS, *kept, "--evaluate-only", f"--export={tmp_path / 'averages'}")
    (epoch,), (evaluation,) = records(tmp_path, "epoch"), records(tmp_path, "incident")
    assert evaluation["kind"] == "evaluation"
    assert f"validation loss {epoch['val_loss']:.4f}, accuracy {epoch['val_accuracy']:.2%} of" in evaluation["text"]
    assert len(records(tmp_path, "step")) == 20
    state = torch.load(tmp_path / "checkpoints" / "step-00000020" / "state.pt", weights_only=True)
    averages = state["ema"]["averages"]
    assert all(torch.equal(tensor, averages[name]) for name, tensor in load_file(tmp_path / "averages").items())
