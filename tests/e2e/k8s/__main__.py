"""Kubernetes end to end: `make e2e-k8s`, or `python -m tests.e2e.k8s [--built] [words for pytest]`.

Uses the first of these that is to be had, says which, and skips where there is none:
1. the cluster that kubectl talks to (KUBECONFIG=/dev/null passes it over), in namespaces of its own;
2. kube-apiserver and etcd from the folder KUBEBUILDER_ASSETS;
3. both built from Go modules, together with the controllers and operators; with --built only if they are built already.

For 2 and 3 everything runs below one process in namespaces of its own (processes, network, mounts), with its files in
a tmpfs that nobody else sees: when that process ends, for whatever reason, the kernel takes all of it away.
E2E_K8S_NETWORK=ipv6 makes a cluster without IPv4 and with another domain, KUBERNETES=1.37 a newer one (parts.py).
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.e2e.k8s import parts

REPOSITORY = Path(__file__).parents[3]
HERE = Path(__file__).parent
_TOOLS = ("ip", "kubectl", "mount", "nsenter", "openssl", "setpriv", "unshare")
# One of these folders becomes the place of all files, seen by our processes only; it must hold nothing that they need.
_PLACES = ("/srv", "/media", "/mnt", "/opt")


def main(words: list[str]) -> int:
    built_only = "--built" in words
    command = [sys.executable, "-m", "pytest", str(HERE), "--timeout=1800", "-rs", "-p", "no:cacheprovider"]
    command += [word for word in words if word != "--built"]
    if context := current_cluster():
        print(f"e2e-k8s: the cluster of kubectl's context {context}", flush=True)
        return subprocess.run(command, cwd=REPOSITORY, env={**os.environ, "E2E_K8S": "current"}).returncode
    problem = _cannot_isolate()
    if not built_only and not problem:
        problem = parts.build()
    found = parts.find()
    if found is None or _cannot_isolate():
        hint = "`python -m tests.e2e.k8s.parts --build` builds them"
        print(f"e2e-k8s skipped: no cluster, and {problem or f'no kube-apiserver and etcd here; {hint}'}")
        return 0
    if problem:
        print(f"e2e-k8s: not everything can be built: {problem}")
    print(f"e2e-k8s: {', '.join(sorted(found.programs))}: {found.source}", flush=True)
    place = next(place for place in _PLACES if Path(place).is_dir() and not _is_needed(place, found))
    script = f'mount -t tmpfs tmpfs {place}; export TMPDIR={place} KUBECACHEDIR={place} E2E_K8S=parts; exec "$@"'
    isolated = ["unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
    os.chdir(REPOSITORY)
    os.execvp("unshare", [*isolated, "sh", "-euc", script, "sh", *command])


def current_cluster() -> str:
    """The name of kubectl's context if its API server answers, else nothing."""
    if not shutil.which("kubectl"):
        return ""
    context = subprocess.run(["kubectl", "config", "current-context"], capture_output=True, text=True)
    alive = subprocess.run(["kubectl", "get", "--raw", "/readyz", "--request-timeout=60s"], capture_output=True)
    return context.stdout.strip() if context.returncode == alive.returncode == 0 else ""


def _cannot_isolate() -> str:
    """Why this machine cannot play pods, or nothing."""
    missing = [program for program in _TOOLS if not shutil.which(program)]
    if missing:
        return f"{', '.join(missing)} not installed"
    done = subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "true"], capture_output=True, text=True)
    return f"no namespaces of our own: {done.stderr.strip()}; root has them" if done.returncode else ""


def _is_needed(place: str, found: parts.Parts) -> bool:
    needed = [REPOSITORY, Path(sys.prefix), Path(sys.base_prefix), *found.programs.values(), *found.manifests.values()]
    return any(path.resolve().is_relative_to(place) for path in needed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
