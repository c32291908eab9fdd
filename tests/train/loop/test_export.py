"""`--export` writes the weights that other programs load; `--evaluate-only` gives the accuracy that training gave."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import torch

from tests.cli import records
from tests.ranks import make_trainer, run_ranks, train_on_ranks
from tests.train.devices import needs_fsdp_on_cpus
from train import models
from train.errors import UserError
from train.records.metrics import weights_sha256
from train.trainer import refuse_impossible_export
from train.world.environment import World

_FLAGS = ["--model=mlp", "--dataset=synthetic", "--device=cpu", "--batch-size=500", "--lr=0.1"]


def test_exported_weights_are_those_of_the_end_and_a_bare_model_loads_them(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    file = tmp_path / "weights.safetensors"
    train_on_ranks(2, *_FLAGS, f"--export={file}", f"--run-dir={tmp_path}")
    exported = load_file(file)
    (end,) = records(tmp_path, "end")
    assert weights_sha256(exported) == end["weights_sha256"]
    models.build("mlp", (1, 28, 28), 10, None).load_state_dict(exported)


def _exported_twice(world: World, file: str) -> str:
    trainer = make_trainer(world, *_FLAGS)
    with redirect_stdout(StringIO()) as said:
        for _ in range(2):
            trainer.export(file)
    return said.getvalue()


def test_a_file_that_the_export_replaces_is_said(tmp_path: Path) -> None:
    [said] = run_ranks(1, _exported_twice, str(tmp_path / "file"))
    exported = rf"exported .* to {tmp_path}/file \(weights_sha256 \w+\)"
    assert re.fullmatch(rf"{exported}\n{exported}, replacing an earlier file\n", said), said


_TOO_LONG = "folder/" * 1000 + "weights"  # as a folder that this user may not read, but for root, too


def test_export_that_cannot_be_written_is_refused_before_the_training() -> None:
    with pytest.raises(UserError, match=r"^--export: cannot write folder/.* does not exist or is not"):
        refuse_impossible_export(_TOO_LONG)
    with pytest.raises(UserError, match=r"^--export: cannot write /: it is a folder; name a file"):
        refuse_impossible_export("/")


def _refused_at_the_end(world: World) -> str:
    with pytest.raises(UserError) as refusal:
        make_trainer(world, *_FLAGS).export(_TOO_LONG)
    return str(refusal.value)


def test_export_that_fails_at_the_end_is_reported_without_a_traceback() -> None:
    assert run_ranks(1, _refused_at_the_end) == [f"--export: cannot write {_TOO_LONG}: File name too long"]


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


@pytest.mark.parametrize("strategy", ["custom_ddp", pytest.param("fsdp", marks=needs_fsdp_on_cpus)])
def test_an_evaluation_leaves_the_folder_of_checkpoints_as_it_is(strategy: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    kept = [*_FLAGS, f"--strategy={strategy}", f"--checkpoint-dir={folder}"]
    train_on_ranks(2, *kept, "--checkpoint-every=8")
    (folder / ".unfinished-step-00000099").mkdir()  # a training that still runs is about to finish it
    before = _contents(folder)
    train_on_ranks(2, *kept, f"--resume={folder / 'step-00000008'}", "--evaluate-only")
    assert _contents(folder) == before


def _contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def test_an_evaluation_needs_only_the_settings_that_shape_the_weights(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    train_on_ranks(1, *_FLAGS, "--optimizer=sgd", f"--checkpoint-dir={folder}")
    others = ["--batch-size=100", "--lr=3", "--seed=5", "--optimizer=adamw", "--precision=bf16"]
    others.append(f"--run-dir={tmp_path}")
    train_on_ranks(1, *_FLAGS[:3], *others, f"--resume={folder / 'step-00000020'}", "--evaluate-only")
    (evaluation,) = records(tmp_path, "incident")
    assert evaluation["kind"] == "evaluation"
    with pytest.raises(RuntimeError, match='model was "mlp" and is "mnist_bn"'):
        train_on_ranks(1, "--model=mnist_bn", *_FLAGS[1:], f"--resume={folder / 'step-00000020'}", "--evaluate-only")
