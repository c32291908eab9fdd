"""Each benchmark runs for a few steps and writes what it promises.  Nothing here looks at a time."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import ddp, ddp_network, render
from benchmarks.network import missing_for_nodes
from benchmarks.own_loop import NEEDS
from benchmarks.ranks import HERE, ROOT, python_path, run_ranks
from benchmarks.variants import NATIVE, PLAIN
from tests.idx import write_split
from train.datasets.synthetic import load

needs_nodes = pytest.mark.skipif(missing_for_nodes() is not None, reason=str(missing_for_nodes()))


def write_dataset(folder: Path, images: Tensor, labels: Tensor) -> None:
    """The same samples, shapes (N, 28, 28) and (N), as training and as validation set."""
    for prefix in ("train", "t10k"):
        write_split(folder, images, labels.to(torch.uint8), prefix)


def result_of(result: str, folder: Path, benchmark: str, *arguments: str) -> dict[str, Any]:
    """Run a benchmark; return what it wrote."""
    command = [sys.executable, "-m", f"benchmarks.{benchmark}", f"--results={folder}", *arguments]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": python_path()}, check=True)
    text = (folder / f"{result}.json").read_text()
    assert str(folder) not in text
    written: dict[str, Any] = json.loads(text)
    return written


def test_input_benchmark_compares_equal_values_and_reports_a_ratio_for_each_peer(tmp_path: Path) -> None:
    samples = load(tmp_path, "train", seed=0)
    images, labels = zip(*(samples[index] for index in range(200)), strict=True)
    write_dataset(tmp_path / "MNIST" / "raw", torch.cat(images), torch.tensor(labels))
    result = result_of("input", tmp_path, "input", f"--data-root={tmp_path}", "--rounds=2")
    assert result["largest_difference"] < 1e-6
    assert {name: len(values) for name, values in result["ratios"].items()} == dict.fromkeys(result["ratio"], 2)
    assert set(result["ratio"]) == {"loader_0_workers", "loader_2_workers"}


def test_epoch_benchmark_trains_all_variants_to_the_same_loss(tmp_path: Path) -> None:
    # One image many times, no dropout, whole batches: the order has no part, so losses differ only if the work does.
    image, label = load(tmp_path, "train", seed=0)[0]
    write_dataset(tmp_path / "MNIST" / "raw", image.repeat(192, 1, 1), torch.full((192,), int(label)))
    settings = ("--rounds=1", "--max-steps=3", "--dropout=0", "--tolerance=1e-3", f"--data-root={tmp_path}")
    result = result_of("epoch_mnist_cnn", tmp_path, "epoch", "--workload=mnist_cnn", *settings)
    assert result["losses_agree"] and result["ratio"]["ours"] > 0


def test_exact_benchmark_finds_the_memory_that_the_docs_state(tmp_path: Path) -> None:
    result = result_of("exact", tmp_path, "exact", "--workload=mlp_32", "--rounds=1", "--max-steps=4")
    peaks = result["gradients_in_memory_by_slices_of_a_process"]
    # The fast mode holds gradients once; what it takes besides, such as memory of libraries, both modes take.
    assert [peaks[name] - peaks["fast"] for name in ("1", "2", "4", "8")] == pytest.approx([1, 1, 2, 3], rel=0.05)


@pytest.mark.parametrize("loop", ["ddp", "accelerate", "fabric"])
def test_own_loop_benchmark_counts_samples_and_times_steps(loop: str, tmp_path: Path) -> None:
    module = NEEDS[loop]
    pytest.importorskip(module, reason=f"{module} is no dependency of the project: pip install {module}")
    counted = result_of("own_loop_kills", tmp_path, "own_loop", f"--peers={loop}", "--kills=1")
    assert counted["lines_of_code"]["ours"] < counted["lines_of_code"][loop]
    assert [counts[:2] for case in counted["ours"].values() for counts in case] == [[0, 0]] * 3
    repeated, skipped, done_again = counted[loop]["no kill"][0]
    assert (repeated > 0, skipped, done_again) == (True, 0, 0)  # padding
    timed = result_of("own_loop", tmp_path, "own_loop", f"--peers={loop}", "--rounds=1")
    assert set(timed["ratio"]) == {f"mlp / {loop}", f"mnist_cnn / {loop}"}


def test_ddp_benchmark_trains_all_variants_to_the_same_losses_and_weighs_them(tmp_path: Path) -> None:
    settings = ("--workload=mlp", "--rounds=2", "--steps=2", "--memory-rounds=1")
    result = result_of("ddp_2", tmp_path, "ddp", *settings)
    assert result["losses_agree"] == {"mlp": True}
    assert result["best_native"]["mlp"] in NATIVE
    assert set(result["ratio_to_variant"]["mlp"]) == {"ours_gloo", *NATIVE, *PLAIN}
    assert set(result["peak_memory_mib"]["mlp"]) == {"ours", "native_bucket_view"}


def test_ratio_is_that_to_the_fastest_native_variant_and_losses_that_differ_are_noticed() -> None:
    seconds = {"ours": [1.0, 1.0, 1.2], "native": [2.0] * 3, "native_bucket_view": [1.25] * 3}
    seconds["native_static_graph"] = [1.5] * 3
    losses = {variant: [2.0, 1.0] for variant in seconds}
    compared = ddp.compare({"step_seconds": seconds, "losses": losses})
    assert (compared["best_native"], compared["losses_agree"]) == ("native_bucket_view", True)
    assert compared["ratio"] == pytest.approx(0.8)
    assert not ddp.compare({"step_seconds": seconds, "losses": losses | {"native": [2.0, 1.000001]}})["losses_agree"]


@needs_nodes
def test_network_benchmark_compares_each_wire_format(tmp_path: Path) -> None:
    settings = ("--mbit-per-s=1000", "--workload=mlp", "--rounds=1", "--steps=1")
    result = result_of("ddp_network_1000", tmp_path, "ddp_network", *settings)
    assert set(result["ratio"]) == set(ddp_network.COMPARISONS)
    assert set(result["step_seconds"]) == set(ddp_network.VARIANTS)


def test_render_benchmark_reports_a_ratio_for_each_target_and_size(tmp_path: Path) -> None:
    for peer in ("torchx", "nemo_run"):
        (tmp_path / peer).write_text('#!/bin/sh\necho "version 7 of $(basename "$0")"\n')
        (tmp_path / peer).chmod(0o755)
    peers = (f"--torchx={tmp_path / 'torchx'}", f"--nemo-run={tmp_path / 'nemo_run'}")
    result = result_of("render", tmp_path, "render", *peers, "--rounds=1")
    compared = ["torchx_slurm", "torchx_kubernetes", "nemo_run_slurm"]
    assert set(result["ratio"]) == {f"{name}_{nodes}x8" for name in compared for nodes in (2, 64)}
    assert result["settings"] == {"torchx": "version 7 of torchx", "nemo_run": "version 7 of nemo_run", "rounds": 1}


def test_artifact_of_many_nodes_may_differ_in_digits_only() -> None:
    assert not render.grows("slurm", {"ours_slurm_2x8": 1000, "ours_slurm_64x8": 1004})
    assert render.grows("slurm", {"ours_slurm_2x8": 1000, "ours_slurm_64x8": 1100})


def rank_but(failing: int) -> int:
    import torch.distributed as dist

    if dist.get_rank() == failing:
        raise ValueError("as asked")
    dist.barrier()
    return dist.get_rank()


def test_results_come_by_rank_and_a_rank_that_fails_ends_the_run() -> None:
    assert run_ranks(rank_but, [HERE] * 2, 600.0, failing=2) == [0, 1]
    with pytest.raises(RuntimeError, match="failed with exit code 1"):
        run_ranks(rank_but, [HERE] * 2, 600.0, failing=1)
