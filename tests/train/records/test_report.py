"""python -m train.report draws real runs and says where two of them part."""

import json
import re
from pathlib import Path

import pytest

from tests.ranks import make_trainer, run_ranks
from train import report
from train.world.environment import World

_FLAGS = ["--model=mlp", "--dataset=synthetic", "--device=cpu", "--batch-size=1000", "--log-every=2", "--clip-norm=1"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs: `short` is `long` that ends after 8; `other` has another learning rate."""
    folder = tmp_path_factory.mktemp("runs")
    run_ranks(1, _train, folder)
    return folder


def _train(world: World, folder: Path) -> None:
    for name, *more in (
        ("long", "--max-steps=12"),
        ("short", "--max-steps=8"),
        ("other", "--max-steps=12", "--lr=0.02", "--scheduler=step"),
    ):
        make_trainer(world, *_FLAGS, "--epochs=2", f"--run-dir={folder / name}", *more).fit()


def _said(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[str], str]:
    """The exit code, the lines on stdout, and stderr."""
    code = report.main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return code, said.out.splitlines(), said.err


def test_the_page_holds_all_curves_of_all_runs_and_needs_no_network(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines, _ = _said(capsys, runs / "long", runs / "short", runs / "other", "--out", tmp_path)
    assert (code, lines) == (0, [f"{tmp_path / 'report.html'} shows 8 curves of 3 runs"])
    pictures = {file.stem for file in tmp_path.glob("*.png")}
    assert pictures >= {"loss", "epoch-loss", "accuracy", "lr", "grad-norm", "speed"}
    assert all((tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in pictures)
    page = (tmp_path / "report.html").read_text()
    assert page.count('src="data:image/png;base64,') == len(pictures)
    assert not re.search(r"https?://|<script|<link", page)
    assert all(f"<td>{name}</td>" in page for name in ("long", "short", "other"))


def test_a_run_that_only_ends_earlier_has_the_same_losses(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines, _ = _said(capsys, "--diff", runs / "long", runs / "short", "--out", tmp_path)
    assert code == 0
    assert lines[:4] == [
        "long and short:",
        "max_steps: 12 and 8",
        "all 8 losses recorded in both are the same numbers",
        "the last steps are 12 and 8",
    ]
    assert "the final weights are different" in lines


def test_where_two_runs_part_is_said_with_step_epoch_and_distance(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, lines, _ = _said(capsys, "--diff", runs / "long", runs / "other", "--out", tmp_path)
    assert lines[1:3] == ["lr: 0.01 and 0.02", "scheduler: none and step"]
    assert "learning rates first differ at step 1: 0.01 and 0.02" in lines
    # The first loss is that of the same first weights.
    losses = [
        [json.loads(line) for line in (runs / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("long", "other")
    ]
    one, two = (next(record["loss"] for record in run if record.get("step") == 2) for run in losses)
    (parting,) = [line for line in lines if line.startswith("losses are the same")]
    assert parting.startswith("losses are the same numbers up to step 1 and first differ at step 2 (epoch 1): ")
    assert f"{one:.6g} and {two:.6g}" in parting


def test_a_torn_last_line_is_left_out(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torn = tmp_path / "torn"
    torn.mkdir()
    whole = (runs / "long" / "metrics.jsonl").read_text()
    (torn / "metrics.jsonl").write_text(whole + '{"event": "step", "st')
    code, lines, _ = _said(capsys, "--diff", runs / "long", torn, "--out", tmp_path)
    assert code == 0
    assert "all 12 losses recorded in both are the same numbers" in lines
    assert "the final weights are identical" in lines


def test_a_new_run_in_an_old_folder_replaces_its_records_and_an_evaluation_does_not(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [(runs / name / "metrics.jsonl").read_text() for name in ("other", "short")]
    (tmp_path / "metrics.jsonl").write_text("".join(parts) + '{"event": "start", "config": {"lr": 7}}\n')
    _, lines, _ = _said(capsys, "--diff", tmp_path, runs / "short", "--out", tmp_path)
    assert lines[1:3] == [
        "settings, versions and number of processes are the same",
        "all 8 losses recorded in both are the same numbers",
    ]
    assert lines[-2] == "the final weights are identical"


def test_run_that_had_ended_before_it_was_resumed_is_named_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ['{"event": "start"}', '{"event": "incident", "kind": "already_ended"}', '{"event": "end"}']
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    code, _, errors = _said(capsys, tmp_path, "--out", tmp_path / "out")
    assert code == 1
    assert errors.endswith(
        "metrics.jsonl holds no step: the run had already ended when it was resumed. "
        "Give the --run-dir of the start that trained\n"
    )


def test_folders_without_a_run_are_all_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "metrics.jsonl").write_bytes(b'{"event": "start"}\n[1]\n\xff\n')  # and what is no record
    code, lines, errors = _said(capsys, tmp_path / "absent", tmp_path / "begun", "--out", tmp_path / "out")
    assert (code, lines) == (1, [])
    assert re.search(r"cannot read .*absent/metrics.jsonl: No such file.* --run-dir of a run\n", errors)
    assert "begun/metrics.jsonl holds no step: the run ended before" in errors
    assert not (tmp_path / "out").exists()


def test_values_that_a_program_recorded_have_curves_and_a_run_without_accuracy_has_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [
        {"event": "step", "epoch": 1, "step": n, "loss": 2.0 / n, "lr": 0.1, "my loss": 3.0 * n} for n in range(1, 202)
    ]
    epoch = {"event": "epoch", "epoch": 1, "step": 201, "train_loss": 1.5, "bleu": 0.25, "my/loss": 1}
    lines = [json.dumps(record) for record in [{"event": "start"}, *steps, epoch]]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    code, said, _ = _said(capsys, tmp_path, "--out", tmp_path / "out")
    assert code == 0, said
    pictures = {file.stem for file in (tmp_path / "out").glob("*.png")}
    assert pictures == {"loss", "lr", "my-loss", "my-loss-2", "bleu"}
