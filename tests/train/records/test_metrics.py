"""metrics.jsonl is only ever appended to; the hash of the weights is the one that its definition gives."""

import hashlib
import json
import resource
import struct
import time
from pathlib import Path

import pytest
import torch

from train.errors import UserError
from train.records.metrics import MetricsFile, weights_sha256
from train.records.observer import EpochRecord, RunEnd, StepRecord


def records(folder: Path) -> list[dict[str, object]]:
    """The records without their time, which is that of this test."""
    read = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    times = [record.pop("time") for record in read]
    assert times == sorted(times)
    return read


def test_weights_sha256_is_the_digest_computed_by_hand() -> None:
    state = {
        "b.weight": torch.tensor([[1.0, -2.5], [0.0, 3e-8], [5.0, 6.0]]),
        "a.count": torch.tensor(7),
        "empty": torch.empty(0, 3, dtype=torch.float64),
        "mask": torch.tensor([True, False]),
        "narrow": torch.tensor([1.0], dtype=torch.bfloat16),
        "sign": torch.tensor([-0.0]),
    }
    content = (
        b"a.count\0int64\0\0" + struct.pack("<q", 7)
        + b"b.weight\0float32\0" + b"3,2\0" + struct.pack("<6f", 1.0, -2.5, 0.0, 3e-8, 5.0, 6.0)
        + b"empty\0float64\0" + b"0,3\0"
        + b"mask\0bool\0" + b"2\0" + b"\1\0"
        + b"narrow\0bfloat16\0" + b"1\0" + b"\x80\x3f"
        + b"sign\0float32\0" + b"1\0" + struct.pack("<f", -0.0)
    )  # fmt: skip
    assert weights_sha256(state) == hashlib.sha256(content).hexdigest()


def test_weights_sha256_is_independent_of_insertion_order_and_memory_layout() -> None:
    first, second = torch.randn(3, 4), torch.randn(5)
    transposed = first.t().contiguous().t()
    assert not transposed.is_contiguous()
    assert weights_sha256({"x": first, "y": second}) == weights_sha256({"y": second, "x": transposed})
    assert weights_sha256({"x": first.requires_grad_()}) == weights_sha256({"x": first.detach().clone()})


def test_each_record_is_one_line_that_is_there_at_once(tmp_path: Path) -> None:
    metrics = MetricsFile(str(tmp_path / "deep" / "run"))
    metrics.write("start", text="two\nlines", number=1)
    assert records(tmp_path / "deep" / "run") == [{"event": "start", "text": "two\nlines", "number": 1}]
    metrics.write("step", loss=0.25)
    assert records(tmp_path / "deep" / "run")[1] == {"event": "step", "loss": 0.25}


def test_a_file_that_is_there_is_continued_and_not_truncated(tmp_path: Path) -> None:
    for run in range(3):
        with MetricsFile(str(tmp_path)) as metrics:
            metrics.write("start", run=run)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with MetricsFile(str(tmp_path)):
        pass
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    assert [record["run"] for record in records(tmp_path)] == [0, 1, 2]


def test_a_folder_that_cannot_be_made_or_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "metrics.jsonl").mkdir()
    for run_dir, said in ("file", "file"), ("file/below", "file/below"), ("", "metrics.jsonl: Is a directory"):
        with pytest.raises(UserError, match=rf"^run_dir: cannot write {tmp_path}/{said}"):
            MetricsFile(str(tmp_path / run_dir))


def test_a_record_that_finds_the_disk_full_is_reported_and_the_end_of_the_block_adds_nothing(tmp_path: Path) -> None:
    # The kernel refuses to let the file grow, as it does on a full disk.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with (
            pytest.raises(UserError, match=rf"^run_dir: cannot write {tmp_path}/metrics.jsonl: File too large"),
            MetricsFile(str(tmp_path)) as metrics,
        ):
            metrics.write("start")
            resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "metrics.jsonl").stat().st_size, limits[1]))
            metrics.write("step", loss=1.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert records(tmp_path) == [{"event": "start"}]


def test_as_an_observer_it_writes_every_field_that_is_known(tmp_path: Path) -> None:
    before = time.time()
    plain = StepRecord(1, 1, 2.5, 0.1, 64, before + 1, 0.5, 128.0, grad_norm=None)
    clipped = StepRecord(1, 2, 2.25, 0.1, 64, before + 2, 0.5, 128.0, grad_norm=3.0)
    with MetricsFile(str(tmp_path)) as metrics:
        metrics.run_started({"run_id": "some"})
        metrics.step_ended(1, [])
        metrics.step_ended(2, [plain, clipped])
        metrics.epoch_ended(EpochRecord(1, 2, 2.4, {"val_loss": 2.3, "val_accuracy": 0.5}, 128, 128, 4.0, 3.0))
        metrics.run_ended(RunEnd(1, 2, saved=True, weights_sha256=None))
        metrics.run_ended(RunEnd(2, 4, saved=True, weights_sha256="ab"))
    rates = {"seconds_per_step": 0.5, "samples_per_second": 128.0}
    written = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["time"] for record in written if record["event"] == "step"] == [before + 1, before + 2]
    assert [{name: value for name, value in record.items() if name != "time"} for record in written] == [
        {"event": "start", "run_id": "some"},
        {"event": "step", "epoch": 1, "step": 1, "loss": 2.5, "lr": 0.1, "samples": 64, **rates},
        {"event": "step", "epoch": 1, "step": 2, "loss": 2.25, "lr": 0.1, "samples": 64, **rates, "grad_norm": 3.0},
        {
            "event": "epoch",
            "epoch": 1,
            "step": 2,
            "train_loss": 2.4,
            "val_loss": 2.3,
            "val_accuracy": 0.5,
            "samples": 128,
            "samples_read": 128,
            "seconds": 4.0,
            "train_seconds": 3.0,
        },
        {"event": "stop", "epoch": 1, "step": 2, "saved": True},
        {"event": "end", "step": 4, "weights_sha256": "ab"},
    ]
