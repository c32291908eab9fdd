"""Where the real parts of the cluster come from: KUBEBUILDER_ASSETS, or Go's module proxy, built once and kept.

The folder parts/ is a Go module that pins them; Go checks each download against sum.golang.org.  What is built lies in
${XDG_CACHE_HOME:-~/.cache}, with the operators' own manifests beside the programs.

    python -m tests.e2e.k8s.parts            what is here, without building anything
    python -m tests.e2e.k8s.parts --build    build what is missing (20 minutes on two cores, 2 GB)
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.go_modules import CannotBuildError, cache, go, new

MODULE = Path(__file__).parent / "parts"
# Program → the name under which `go install` leaves it.
CONTROL_PLANE = {"kube-apiserver": "kube-apiserver", "etcd": "server"}
CONTROLLERS = {
    "kube-controller-manager": "kube-controller-manager",
    "training-operator": "training-operator.v1",
    "trainer": "trainer-controller-manager",
    "jobset": "jobset",
    "kueue": "kueue",
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


def find() -> Parts | None:
    """What is here; None without an API server and etcd.  Of the controllers there may be none, some or all."""
    built = _cache()
    given = os.environ.get("KUBEBUILDER_ASSETS")
    folders = {"found through KUBEBUILDER_ASSETS": Path(given)} if given else {}
    folders["built from Go modules"] = built
    for source, folder in folders.items():
        if all(_runs(folder / name) for name in CONTROL_PLANE):
            places = {name: [folder / name, built / name] for name in (*CONTROL_PLANE, *CONTROLLERS)}
            programs = {name: next(filter(_runs, files)) for name, files in places.items() if any(map(_runs, files))}
            manifests = {name: built / f"{name}.yaml" for name in MANIFESTS if (built / f"{name}.yaml").exists()}
            return Parts(source, programs, manifests)
    return None


def _runs(program: Path) -> bool:
    return os.access(program, os.X_OK)


def build() -> str:
    """Build everything that is not in the cache; in words why that is impossible, or nothing."""
    folder = _cache()
    if all((folder / name).exists() for name in (*CONTROL_PLANE, *CONTROLLERS)):
        return ""
    if not shutil.which("kubectl"):
        return "kubectl is not installed"
    print(f"building the parts of a cluster into {folder}", flush=True)
    try:
        with new(folder) as made:
            module = shutil.copytree(MODULE, made.parent / "module")
            flags = {"GOFLAGS": "-mod=mod -buildvcs=false"}  # Go may write a go.sum
            # The downloads come first: whether there is a proxy is known after seconds and not after minutes.
            go("mod", "download", folder=module, **flags)
            go("install", f"-ldflags={_link_flags()}", "tool", folder=module, GOBIN=str(made), **flags)
            for name, made_as in {**CONTROL_PLANE, **CONTROLLERS}.items():
                (made / made_as).rename(made / name)
            for name, (source, top, overlay) in MANIFESTS.items():
                (made / f"{name}.yaml").write_bytes(_manifests(module, source, top, overlay, made.parent / name))
    except CannotBuildError as problem:
        return str(problem)
    return ""


def _cache() -> Path:
    """The folder of what these versions give; another version has another one."""
    return cache(f"kubernetes-{hashlib.sha256((MODULE / 'go.mod').read_bytes()).hexdigest()[:12]}")


def _link_flags() -> str:
    """No symbols, and the version that the API server tells its clients, which Go does not fill in by itself."""
    (version,) = re.findall(r"k8s\.io/kubernetes (v[\d.]+)", (MODULE / "go.mod").read_text())
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
