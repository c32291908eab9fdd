"""`render-job why` names how the first of a job's processes died, from the pods' logs and `kubectl describe pods`."""

import re
from pathlib import Path

import pytest

from jobspec.why import why
from tests.cli import HANG_S
from tests.e2e.k8s.cluster import Cluster
from tests.e2e.k8s.specs import job, rendered

SCRIPT = """
import os, signal, socket, sys
how, rank = sys.argv[1], int(os.environ["RANK"])
if how in ("everywhere", f"import-{rank}"):
    import missing
import torch
torch.distributed.init_process_group("gloo")
if rank == 1 and how.startswith("sig"):
    os.kill(os.getpid(), getattr(signal, how.upper()))
elif rank == 1 and how == "nan":
    raise ValueError("the loss is nan")
elif rank == 1 and how == "disk":
    os.write(os.open("/dev/full", os.O_WRONLY), b"checkpoint")
elif rank == 1 and how == "port":
    socket.create_server(("", 8000)), socket.create_server(("", 8000))
print("waits", flush=True)
torch.distributed.barrier()
"""
# Name of the job → what is said.
DEATHS = {
    "sigkill": r"rank 1 on sigkill-1\S* ended with -9 \(SIGKILL\): killed: its memory limit",
    "sigsegv": r"rank 1 on sigsegv-1\S* ended with -11 \(SIGSEGV\): a library crashed",
    "import-1": r"rank 1 on import-1-1\S* ended with 1: ModuleNotFoundError: No module named 'missing': install it",
    "everywhere": r"rank\S* .* ended with 1: ModuleNotFoundError: No module named 'missing': install it",
    "nan": r"rank 1 on nan-1\S* ended with 1: ValueError: the loss is nan",
    "disk": r"rank 1 on disk-1\S* ended with 1: OSError: \[Errno 28\] No space left on device: a disk is full",
    "port": r"rank 1 on port-1\S* ended with 1: OSError: \[Errno 98\] Address already in use.*: another process has it",
    "path": r"rank\S* .* ended with 2: \S+: can't open file '\S+other.py': .*: that path does not exist there",
    "image": r"pod image-\d\S* on \S+ waits: ErrImagePull: a node cannot pull the image",
    "memory": r"pod memory-1\S* on \S+ exited with code 137 \(Error\): killed: its memory limit",
}


def test_jobs_that_die_say_how(
    cluster: Cluster, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.needs_controllers("indexedjob")
    player = cluster.player()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SCRIPT)
    here = ("--namespace", namespace)
    for name, wanted in DEATHS.items():
        command = ["other.py"] if name == "path" else ["mine.py", name]
        spec = job("missing:1" if name == "image" else cluster.image, command=command, files=["mine.py"])
        cluster.apply(rendered("indexedjob", spec | {"name": name}, namespace, tmp_path))
        describe = ("describe", "pods", f"--selector=app.kubernetes.io/instance={name}", *here)
        if name == "image":
            cluster.until(lambda: "ErrImagePull" in cluster.kubectl("get", "pods", "--output=yaml", *here), "no image")
        else:
            if name == "memory":
                cluster.until(lambda: "waits" in player.logs(namespace, "memory-1"), "rank 1 waits")
                names = [pod["metadata"]["name"] for pod in cluster.pods(namespace)]
                player.kill(namespace, next(name for name in names if name.startswith("memory-1")))
            cluster.kubectl("wait", "--for=condition=Failed", f"--timeout={HANG_S}s", f"jobs/{name}", *here)
        said = why(player.logs(namespace, f"{name}-") + cluster.kubectl(*describe))
        assert re.match(f"first failure: {wanted}", said), said
