"""One engine and one image for all tests of this folder."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.e2e.docker.base import NoBaseError, make_base
from tests.e2e.docker.client import Docker
from tests.e2e.docker.engine import engine, missing, running

# The name in the committed examples, so that they run as they are.
IMAGE = "registry.example/change-me:1.0"
BASE = "e2e-docker-base"
# Compose 2, and the one that Debian has.
COMPOSES = [("docker", "compose"), ("docker-compose",)]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: not in `make e2e-docker QUICK=1`")
    # So that fixtures also end when make or a time limit ends us.
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))


@pytest.fixture(scope="session")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docker]:
    """The engine that is there already, or one of our own."""
    if running():
        yield Docker(dict(os.environ))
        return
    if reason := missing():
        pytest.skip(f"no Docker: {reason}")
    with engine(tmp_path_factory.mktemp("docker") / "engine") as environ:
        yield Docker(environ)


@pytest.fixture(scope="session")
def base(docker: Docker) -> Iterator[str]:
    """$BASE_IMAGE, or a base made here."""
    if given := os.environ.get("BASE_IMAGE"):
        yield given
        return
    try:
        make_base(BASE, docker.environ)
    except NoBaseError as reason:
        pytest.skip(f"no base image: {reason}; BASE_IMAGE names another")
    yield BASE
    docker("rmi", "--force", BASE)


@pytest.fixture(scope="session")
def image(docker: Docker, base: str) -> Iterator[str]:
    """The image, built without BuildKit."""
    docker.build(IMAGE, base, REVISION="e2e")
    yield IMAGE
    docker("rmi", "--force", IMAGE)


@pytest.fixture
def volume(docker: Docker, request: pytest.FixtureRequest) -> Iterator[str]:
    """A volume of the test's own."""
    name = docker("volume", "create")
    yield name
    docker("volume", "rm", "--force", name)


@pytest.fixture(scope="session")
def compose_command(docker: Docker) -> tuple[str, ...]:
    """Compose 2 if it is installed, else the older one."""
    for words in COMPOSES:
        if docker.has(*words, "version"):
            return words
    pytest.skip("neither `docker compose` nor docker-compose (Debian package docker-compose) is installed")


@pytest.fixture(scope="session", params=COMPOSES, ids=" ".join)
def each_compose_command(docker: Docker, request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Both, one after the other, for what differs between them: when a job has ended, and in which order it stops."""
    words: tuple[str, ...] = request.param
    if not docker.has(*words, "version"):
        pytest.skip(f"`{' '.join(words)}` is not installed (Debian packages docker-compose and docker-compose-v2)")
    return words
