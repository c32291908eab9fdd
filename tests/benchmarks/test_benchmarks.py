"""Each benchmark runs on a few images and writes what it promises.  Nothing here looks at a time."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.own_loop import NEEDS
from benchmarks.ranks import python_path
from tests.idx import write_split
from train.datasets.synthetic import load

ROOT = Path(__file__).parent.parent.parent


def write_dataset(folder: Path, images: Tensor, labels: Tensor) -> None:
    """The same samples, shapes (N, 28, 28) and (N), as training and as validation set."""
    for prefix in ("train", "t10k"):
        write_split(folder, images, labels.to(torch.uint8), prefix)


def run_benchmark(name: str, *arguments: str) -> None:
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    environment = os.environ | {"PYTHONPATH": python_path()}
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


def read_result(folder: Path, name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return result


def test_input_benchmark_compares_equal_values_and_reports_a_ratio_for_each_peer(tmp_path: Path) -> None:
    samples = load(tmp_path, "train", seed=0)
    images, labels = zip(*(samples[index] for index in range(200)), strict=True)
    write_dataset(tmp_path / "MNIST" / "raw", torch.cat(images), torch.tensor(labels))

    run_benchmark("input", f"--data-root={tmp_path}", "--rounds=2", f"--results={tmp_path}")

    result = read_result(tmp_path, "input")
    assert result["largest_difference"] < 1e-6
    assert set(result["ratio"]) == {"loader_0_workers", "loader_2_workers"}
    assert all(len(values) == 2 for values in result["ratios"].values())
    assert str(tmp_path) not in json.dumps(result)


@pytest.mark.parametrize(("workload", "dataset"), [("resnet18", "FashionMNIST"), ("mnist_cnn", "MNIST")])
def test_epoch_benchmark_trains_all_variants_to_the_same_loss(workload: str, dataset: str, tmp_path: Path) -> None:
    # One image many times, no dropout, whole batches: the order has no part, so losses differ only if the work does.
    image, label = load(tmp_path, "train", seed=0)[0]
    write_dataset(tmp_path / dataset / "raw", image.repeat(192, 1, 1), torch.full((192,), int(label)))
    arguments = (f"--data-root={tmp_path}", f"--workload={workload}", f"--results={tmp_path}")

    run_benchmark("epoch", *arguments, "--rounds=1", "--max-steps=3", "--dropout=0", "--tolerance=1e-3")

    result = read_result(tmp_path, f"epoch_{workload}")
    assert result["losses_agree"]
    assert result["ratio"]["ours"] > 0
    assert result["settings"]["max_steps"] == 3
    assert str(tmp_path) not in json.dumps(result)


@pytest.mark.slow
def test_exact_benchmark_finds_the_memory_that_the_docs_state(tmp_path: Path) -> None:
    run_benchmark("exact", "--workload=mlp_32", "--rounds=1", "--max-steps=4", f"--results={tmp_path}")
    result = read_result(tmp_path, "exact")
    assert result["ratio"]["mlp_32"] > 0
    peaks = result["gradients_in_memory_by_slices_of_a_process"]
    # The fast mode holds gradients once; what it takes besides, such as memory of libraries, both modes take.
    assert [peaks[name] - peaks["fast"] for name in ("1", "2", "4", "8")] == pytest.approx([1, 1, 2, 3], rel=0.05)


@pytest.mark.parametrize("loop", ["ddp", "accelerate", "fabric"])
def test_own_loop_benchmark_counts_samples_and_times_steps(loop: str, tmp_path: Path) -> None:
    module = NEEDS[loop]
    pytest.importorskip(module, reason=f"{module} is no dependency of the project: pip install {module}")
    run_benchmark("own_loop", f"--peers={loop}", "--kills=1", f"--results={tmp_path}")
    run_benchmark("own_loop", f"--peers={loop}", "--rounds=1", f"--results={tmp_path}")

    counted = read_result(tmp_path, "own_loop_kills")
    assert counted["lines_of_code"]["ours"] < counted["lines_of_code"][loop]
    assert [counts[:2] for case in counted["ours"].values() for counts in case] == [[0, 0]] * 3
    repeated, skipped, done_again = counted[loop]["no kill"][0]
    assert (repeated > 0, skipped, done_again) == (True, 0, 0)  # padding
    assert set(read_result(tmp_path, "own_loop")["ratio"]) == {f"mlp / {loop}", f"mnist_cnn / {loop}"}
