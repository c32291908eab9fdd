"""A Slurm of stand-ins for tests that change it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm import Cluster


@pytest.fixture
def own_cluster(tmp_path: Path) -> Cluster:
    """Two nodes for a test that installs programs of its own."""
    cluster = Cluster(tmp_path)
    cluster.install_recorder("torchrun")
    return cluster
