"""A site file beside the quickstart's spec."""

from pathlib import Path

import pytest

from tests.render.command import SITE


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A file that holds SITE."""
    file = tmp_path / "site.yaml"
    file.write_text(SITE)
    return file
