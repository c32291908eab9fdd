"""The benchmark of the Trainer's overhead trains both variants and writes what it promises; no time is looked at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import trainer_overhead


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_both_variants_are_timed_by_round(tmp_path: Path) -> None:
    assert trainer_overhead.main(["--model=mlp", "--rounds=2", f"--results={tmp_path}"]) == 0
    result = json.loads((tmp_path / "trainer_overhead.json").read_text())
    assert {name: len(times) for name, times in result["seconds_per_step"].items()} == {"trainer": 2, "bare": 2}
    assert len(result["ratios"]) == 2
    assert result["met"] == (result["ratio"] <= result["target"])
    assert set(result["load_average"]) == {"before", "after"}
