"""What all end-to-end tests share."""

import pytest

from tests.e2e.foreign import Absent, Foreign, fetch


@pytest.fixture(scope="session")
def foreign_script() -> Foreign:
    """A training script that nobody here wrote."""
    try:
        return fetch()
    except Absent as reason:
        pytest.skip(str(reason))
