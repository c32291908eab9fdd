"""What each image of the cluster's pods would hold, from this machine: Python and this repository, or an operator."""

import sys
from pathlib import Path

from tests.e2e.k8s.kubelet import Image
from tests.e2e.k8s.parts import Parts
from tests.e2e.k8s.sandbox import REPOSITORY

_PATH = "/bin-of-images:/usr/local/bin:/usr/bin:/bin"
_NOBODY = 65532  # the user of images without a distribution in them
_OURS = 1000  # as docker/Dockerfile has it


class Images:
    """The image of a name."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def __call__(self, name: str) -> Image:
        for program, part in (
            ("/training-operator:", "training-operator"),
            ("/trainer-controller-manager:", "trainer"),
            ("/jobset:", "jobset"),
            ("/kueue:", "kueue"),
        ):
            if program in name:
                manager = {"/manager": self._parts.programs[part]}
                return Image(entrypoint=["/manager"], env={"PATH": _PATH}, user=_NOBODY, files=manager)
        if name == "alpine:3.10":  # the training operator's init container, which looks a name up
            return Image(env={"PATH": _PATH})
        path = f"{Path(sys.prefix, 'bin')}:{_PATH}"
        env = {"PATH": path, "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"}
        return Image(env=env, user=_OURS)
