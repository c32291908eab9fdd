"""One engine and one image for all tests of this folder."""

import os
import signal
from collections.abc import Iterator

import pytest

from tests.e2e.docker import compose_v2
from tests.e2e.docker.base import NoBaseError, make_base
from tests.e2e.docker.client import Docker
from tests.e2e.docker.engine import engine, missing, running

# The name in the committed examples, so that they run as they are.
IMAGE = "registry.example/change-me:1.0"
BASE = "e2e-docker-base"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: not in `make e2e-docker QUICK=1`")
    # So that fixtures also end when make or a time limit ends us.
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))


@pytest.fixture(scope="session")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docker]:
    """The engine that is there already, or one of our own."""
    if running():
        yield _with_compose(dict(os.environ))
        return
    if reason := missing():
        pytest.skip(f"no Docker: {reason}")
    with engine(tmp_path_factory.mktemp("docker") / "engine") as environ:
        yield _with_compose(environ)


def _with_compose(environ: dict[str, str]) -> Docker:
    """With the `docker compose` that we have built, where none is installed."""
    installed = Docker(environ).has("docker", "compose", "version")
    return Docker(environ if installed else {**environ, "DOCKER_CONFIG": str(compose_v2.CONFIG)})


@pytest.fixture(scope="session")
def base(docker: Docker) -> Iterator[str]:
    """$BASE_IMAGE, or a base made here."""
    if given := os.environ.get("BASE_IMAGE"):
        yield given
        return
    try:
        make_base(BASE, docker.environ, "torch", "torchvision")
    except NoBaseError as reason:
        pytest.skip(f"no base image: {reason}; BASE_IMAGE names another")
    yield BASE
    docker("rmi", "--force", BASE)


@pytest.fixture(scope="session")
def image(docker: Docker, base: str) -> Iterator[str]:
    if docker.buildkit_client() is None:
        pytest.skip("no docker client here can use BuildKit (Debian package docker-buildx, or docker.io of 19 to 22)")
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
def composes(docker: Docker) -> None:
    """There is a `docker compose`."""
    if not docker.has("docker", "compose", "version"):
        pytest.skip("no `docker compose` here: `python -m tests.e2e.docker.compose_v2` builds one")
