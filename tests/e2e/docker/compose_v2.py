"""docker compose v2 where it is not installed: built once from its Go module, and kept.

python -m tests.e2e.docker.compose_v2 builds it (5 minutes on two cores; what go has compiled is not compiled again).
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from tests.e2e.docker.client import Docker
from tests.e2e.go_modules import CannotBuildError, cache, go, new

_VERSION = "v2.40.3"
_MODULE = "github.com/docker/compose/v2"

CONFIG = cache(f"docker-compose-{_VERSION}")
"""With DOCKER_CONFIG set to it, `docker compose` is the one built here."""


def build() -> None:
    """Build it if it is needed.  Raises CannotBuildError."""
    if CONFIG.exists() or Docker(dict(os.environ)).has("docker", "compose", "version"):
        return
    print(f"building docker compose {_VERSION} into {CONFIG}", flush=True)
    with new(CONFIG) as made, tempfile.TemporaryDirectory() as nothing:
        module = json.loads(go("mod", "download", "-json", f"{_MODULE}@{_VERSION}", folder=Path(nothing)))
        link = f"-ldflags=-s -w -X {_MODULE}/internal.Version={_VERSION}"
        plugin = f"-o={made}/cli-plugins/docker-compose"
        go("build", "-tags=fsnotify", "-trimpath", link, plugin, "./cmd", folder=Path(module["Dir"]))


if __name__ == "__main__":
    try:
        build()
    except CannotBuildError as problem:
        sys.exit(f"cannot build docker compose: {problem}")
