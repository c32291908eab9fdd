"""The benchmark of render.py measures each variant and writes what it promises.  Nothing here looks at a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.render import grows, main


@pytest.mark.timeout(300)
def test_render_benchmark_reports_a_ratio_for_each_target_and_size(tmp_path: Path) -> None:
    torchx = tmp_path / "torchx"
    torchx.write_text('#!/bin/sh\necho "$@" >> "$(dirname "$0")/calls"\n')
    torchx.chmod(0o755)

    assert main([f"--torchx={torchx}", "--rounds=1", f"--results={tmp_path}"]) == 0

    result = json.loads((tmp_path / "render.json").read_text())
    names = {"slurm_2x8", "slurm_64x8", "pytorchjob_2x8", "pytorchjob_64x8"}
    assert set(result["ratio"]) == names
    assert all(len(result["ratios"][name]) == 1 for name in names)
    assert set(result["ratio_of_nodes"]) == {"slurm", "pytorchjob"}
    assert str(tmp_path) not in json.dumps(result)
    # Once to see that it works, once to be timed.
    assert (tmp_path / "calls").read_text().count("--dryrun --workspace  -s kubernetes") == 4


def test_artifact_of_many_nodes_may_differ_in_digits_only() -> None:
    assert not grows("slurm", {"ours_slurm_2x8": 1000, "ours_slurm_64x8": 1004})
    assert grows("slurm", {"ours_slurm_2x8": 1000, "ours_slurm_64x8": 1100})
