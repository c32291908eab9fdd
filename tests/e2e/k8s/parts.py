"""Where the real parts of the cluster come from: KUBEBUILDER_ASSETS, or Go's module proxy, built once and kept.

The folder parts/ is a Go module that pins them; Go checks each download against sum.golang.org.  What is built lies in
${XDG_CACHE_HOME:-~/.cache}, with the operators' own manifests beside the programs.

    python -m tests.e2e.k8s.parts            what is here, without building anything
    python -m tests.e2e.k8s.parts --build    build what is missing (20 minutes on two cores, 2 GB)

KUBERNETES=1.37 in the environment takes the newer versions of `_NEWER`.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.go_modules import CannotBuildError, cache, go, new

MODULE = Path(__file__).parent / "parts"
_KUBERNETES = os.environ.get("KUBERNETES", "1.36")
# Program → the name under which `go install` leaves it.
CONTROL_PLANE = {"kube-apiserver": "kube-apiserver", "etcd": "server"}
CONTROLLERS = {
    "kube-controller-manager": "kube-controller-manager",
    "training-operator": "training-operator.v1",
    "trainer": "trainer-controller-manager",
    "jobset": "jobset",
    "kueue": "kueue",
}
# KUBERNETES → programs that are built in a folder of their own, and what changes in parts/go.mod for them.  The other
# operators keep the libraries that they were released with.
_NEWER = {
    "1.36": {},
    "1.37": {
        ("kube-apiserver", "kube-controller-manager"): (r"\bv([01])\.36\.3\b", r"v\1.37.2"),
        ("kueue",): (r"/kueue v0\.18\.4\b", "/kueue v0.19.2"),
    },
}
# Program → Go module and the folder in it from which `kubectl kustomize` makes the operator's manifests.
MANIFESTS = {
    "jobset": ("sigs.k8s.io/jobset", "config", "default"),
    "trainer": ("github.com/kubeflow/trainer/v2", "manifests", "overlays/manager"),
    "training-operator": ("github.com/kubeflow/training-operator", "manifests", "overlays/standalone"),
    "kueue": ("sigs.k8s.io/kueue", "config", "default"),
}


@dataclass(frozen=True)
class Parts:
    """Programs by name, the operators' manifests by the program's name, and in words where they come from."""

    source: str
    programs: dict[str, Path]
    manifests: dict[str, Path]


def _builds() -> dict[Path, tuple[tuple[str, ...], str]]:
    """Folder → the programs that are built there, and their go.mod; of a program in two, the last one counts."""
    if _KUBERNETES not in _NEWER:
        sys.exit(f"KUBERNETES is {_KUBERNETES}; there are parts of {' and '.join(_NEWER)}")
    pinned = (MODULE / "go.mod").read_text()
    builds: list[tuple[tuple[str, ...], str]] = [((*CONTROL_PLANE, *CONTROLLERS), pinned)]
    builds += [(programs, re.sub(*change, pinned)) for programs, change in _NEWER[_KUBERNETES].items()]
    return {cache(f"kubernetes-{hashlib.sha256(one[1].encode()).hexdigest()[:12]}"): one for one in builds}


def find() -> Parts | None:
    """What is here; None without an API server and etcd.  Of the controllers there may be none, some or all."""
    built = {name: folder / name for folder, (names, _) in _builds().items() for name in names}
    source, places = f"Kubernetes {_KUBERNETES}, built from Go modules", {name: [built[name]] for name in built}
    given = Path(os.environ.get("KUBEBUILDER_ASSETS", os.devnull))
    if all(_runs(given / name) for name in CONTROL_PLANE):
        source, places = "found through KUBEBUILDER_ASSETS", {name: [given / name, built[name]] for name in built}
    programs = {name: next(filter(_runs, files)) for name, files in places.items() if any(map(_runs, files))}
    manifests = {name: built[name].with_suffix(".yaml") for name in MANIFESTS}
    manifests = {name: file for name, file in manifests.items() if file.exists()}
    return Parts(source, programs, manifests) if programs.keys() >= CONTROL_PLANE.keys() else None


def _runs(program: Path) -> bool:
    return os.access(program, os.X_OK)


def build() -> str:
    """Build everything that is not in the cache; in words why that is impossible, or nothing."""
    for folder, (programs, go_mod) in _builds().items():
        if all((folder / name).exists() for name in programs):
            continue
        if not shutil.which("kubectl"):
            return "kubectl is not installed"
        print(f"building {', '.join(programs)} into {folder}", flush=True)
        try:
            _build(folder, programs, go_mod)
        except CannotBuildError as problem:
            return str(problem)
    return ""


def _build(folder: Path, programs: Sequence[str], go_mod: str) -> None:
    with new(folder) as made:
        module = shutil.copytree(MODULE, made.parent / "module")
        (module / "go.mod").write_text(go_mod)
        flags = {"GOFLAGS": "-mod=mod -buildvcs=false"}  # Go may write a go.sum
        # The downloads come first: whether there is a proxy is known after seconds and not after minutes.
        go("mod", "download", folder=module, **flags)
        names = {name: made_as for name, made_as in {**CONTROL_PLANE, **CONTROLLERS}.items() if name in programs}
        tools = re.findall(rf"^\t(\S+/(?:{'|'.join(names.values())})(?:/v3)?)$", go_mod, re.MULTILINE)
        go("install", f"-ldflags={_link_flags(go_mod)}", *tools, folder=module, GOBIN=str(made), **flags)
        for name, made_as in names.items():
            (made / made_as).rename(made / name)
        for name in MANIFESTS.keys() & names:
            (made / f"{name}.yaml").write_bytes(_manifests(module, *MANIFESTS[name], made.parent / name))


def _link_flags(go_mod: str) -> str:
    """No symbols, and the version that the API server tells its clients, which Go does not fill in by itself."""
    (version,) = re.findall(r"k8s\.io/kubernetes (v[\d.]+)", go_mod)
    major, minor, _ = version[1:].split(".")
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    return " ".join(["-s -w", *(f"-X k8s.io/component-base/version.{name}={value}" for name, value in values.items())])


def _manifests(module: Path, source: str, top: str, overlay: str, copy: Path) -> bytes:
    """What `kubectl apply -k` would apply.

    Left out are what a module fetches from elsewhere (the trainer: JobSet), and API servers of an operator's own
    (Kueue's): ours has no certificate to reach them, and then no namespace could be deleted.
    """
    listed = subprocess.run(
        ["go", "list", "-mod=mod", "-m", "-json", source], cwd=module, check=True, capture_output=True
    )
    shutil.copytree(Path(json.loads(listed.stdout)["Dir"], top), copy)
    copy.chmod(0o755)
    for folder in copy.rglob("*/"):
        folder.chmod(0o755)  # Go's files are read-only
    kustomization = copy / overlay / "kustomization.yaml"
    lines = kustomization.read_text().splitlines()
    kustomization.unlink()
    kustomization.write_text("\n".join(line for line in lines if "third-party/" not in line))
    made = subprocess.run(["kubectl", "kustomize", copy / overlay], check=True, capture_output=True).stdout
    return b"\n---\n".join(one for one in made.split(b"\n---\n") if b"kind: APIService\n" not in one)


if __name__ == "__main__":
    if "--build" in sys.argv and (problem := build()):
        sys.exit(f"cannot build the parts of a cluster: {problem}")
    parts = find()
    if parts is None:
        sys.exit("no kube-apiserver and etcd here; --build makes them")
    print(f"{', '.join(sorted(parts.programs))}: {parts.source}")
