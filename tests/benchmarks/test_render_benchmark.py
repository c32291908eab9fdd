"""The benchmark of render-job measures each variant and writes what it promises.  Nothing here looks at a time."""

import json
from pathlib import Path

from benchmarks.render import grows, main


def test_render_benchmark_reports_a_ratio_for_each_target_and_size(tmp_path: Path) -> None:
    for peer in ("torchx", "nemo_run"):
        (tmp_path / peer).write_text('#!/bin/sh\necho "$@" >> "$0-calls"\necho "version 7 of $(basename "$0")"\n')
        (tmp_path / peer).chmod(0o755)
    peers = [f"--torchx={tmp_path / 'torchx'}", f"--nemo-run={tmp_path / 'nemo_run'}"]

    assert main([*peers, "--rounds=1", f"--results={tmp_path}"]) == 0

    result = json.loads((tmp_path / "render.json").read_text())
    compared = ["torchx_slurm", "torchx_kubernetes", "nemo_run_slurm"]
    names = {f"{name}_{nodes}x8" for name in compared for nodes in (2, 64)}
    assert set(result["ratio"]) == names
    assert all(len(result["ratios"][name]) == 1 for name in names)
    assert set(result["ratio_of_nodes"]) == {"slurm", "pytorchjob"}
    assert result["settings"] == {"torchx": "version 7 of torchx", "nemo_run": "version 7 of nemo_run", "rounds": 1}
    assert str(tmp_path) not in json.dumps(result)
    # Once to see that it works, once to be timed.
    assert (tmp_path / "torchx-calls").read_text().count("--dryrun --workspace  -s kubernetes") == 4
    assert (tmp_path / "nemo_run-calls").read_text().count("nemo_run_job.py 64 8") == 2


def test_artifact_of_many_nodes_may_differ_in_digits_only() -> None:
    assert not grows("slurm", {"ours_slurm_2x8": 1000, "ours_slurm_64x8": 1004})
    assert grows("slurm", {"ours_slurm_2x8": 1000, "ours_slurm_64x8": 1100})
