"""The benchmarks of CustomDDP run for a few steps and write what they promise.  Nothing here looks at a time."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import ddp, ddp_network
from benchmarks.network import missing_for_nodes
from benchmarks.variants import NATIVE, PLAIN

needs_nodes = pytest.mark.skipif(missing_for_nodes() is not None, reason=str(missing_for_nodes()))


def test_ddp_benchmark_trains_all_variants_to_the_same_losses_and_weighs_them(tmp_path: Path) -> None:
    arguments = ["--workload=mlp", "--rounds=2", "--steps=2", "--memory-rounds=1", f"--results={tmp_path}"]
    assert ddp.main(arguments) == 0

    result = json.loads((tmp_path / "ddp_2.json").read_text())
    assert result["losses_agree"] == {"mlp": True}
    assert result["best_native"]["mlp"] in NATIVE
    assert set(result["ratio_to_variant"]["mlp"]) == {"ours_gloo", *NATIVE, *PLAIN}
    assert len(result["ratios"]["mlp"]) == 2
    assert set(result["peak_memory_mib"]["mlp"]) == {"ours", "native_bucket_view"}
    assert str(tmp_path) not in json.dumps(result)


@pytest.mark.cuda
def test_ddp_benchmark_compares_with_the_bare_module_on_cuda(tmp_path: Path) -> None:
    arguments = ["--device=cuda", "--workload=mlp", "--rounds=2", "--steps=2", f"--results={tmp_path}"]
    assert ddp.main(arguments) == 0

    result = json.loads((tmp_path / "ddp_cuda.json").read_text())
    assert set(result["ratio_to_variant"]["mlp"]) == {"bare", *NATIVE}
    assert result["settings"]["device"] == torch.cuda.get_device_name()


@needs_nodes
def test_network_benchmark_compares_each_wire_format_and_reports_the_overlap(tmp_path: Path) -> None:
    arguments = ["--mbit-per-s=1000", "--workload=mlp", "--rounds=1", "--steps=1", f"--results={tmp_path}"]
    assert ddp_network.main(arguments) == 0

    result = json.loads((tmp_path / "ddp_network_1000.json").read_text())
    assert set(result["ratio"]) == set(ddp_network.COMPARISONS)
    assert set(result["overlap_share"]) == set(ddp_network.VARIANTS)
    assert all(0 <= share <= 1 for share in result["overlap_share"].values())
    assert str(tmp_path) not in json.dumps(result)


def test_benchmark_on_nodes_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(SystemExit) as end:
        ddp_network.main([])
    assert end.value.code == 2
    assert "network namespaces need root" in capsys.readouterr().err


def test_ratio_is_that_to_the_fastest_native_variant() -> None:
    seconds = {"ours": [1.0, 1.0, 1.2], "native": [2.0] * 3, "native_bucket_view": [1.25] * 3}
    seconds["native_static_graph"] = [1.5] * 3
    compared = ddp.compare({"step_seconds": seconds, "losses": {variant: [2.0, 1.0] for variant in seconds}})

    assert compared["best_native"] == "native_bucket_view"
    assert compared["ratio"] == pytest.approx(0.8)
    assert compared["losses_agree"]


def test_losses_that_differ_are_noticed() -> None:
    seconds = {variant: [1.0] for variant in ("ours", *NATIVE)}
    losses = {variant: [2.0, 1.000001 if variant == "native" else 1.0] for variant in seconds}
    assert not ddp.compare({"step_seconds": seconds, "losses": losses})["losses_agree"]
