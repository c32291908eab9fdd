"""Pods played by processes of this machine: the kubelets of its nodes, as far as jobs and their operators can tell.

Every pod of the cluster is taken as it comes from the API server: bound to a node, its volumes made, its containers
started with the environment that the API server holds, restarted by its restart policy, ended when it is deleted
(SIGTERM, the grace period, SIGKILL) or its own deadline is over, and its status written back.

Left out: images (a container finds this machine's programs), limits of CPU and memory, GPUs, sidecars, ephemeral
storage.  Sources: Kubernetes, "Pod Lifecycle"; pkg/kubelet/container/backoff (restarts after 0, 10, 20 … s).
"""

import base64
import signal
import subprocess
import threading
import time
import traceback
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.clusters import words_and_environment
from tests.e2e.k8s.api import Api, Gone, Object
from tests.e2e.k8s.names import DOMAIN
from tests.e2e.k8s.nodes import Nodes, now
from tests.e2e.k8s.sandbox import GATEWAY, REPOSITORY, Container, Sandbox, address_of, in_url, send
from tests.e2e.k8s.volumes import Volumes

_LONGEST_BACKOFF_S = 300.0
_TERMINATED = 143  # the exit code where SIGTERM came before the start


@dataclass(frozen=True)
class _Kind:
    """Which of a pod's containers: where their status stands, and the pod's phase while they run."""

    statuses: str
    phase: str


_INIT = _Kind("initContainerStatuses", "Pending")
_MAIN = _Kind("containerStatuses", "Running")


@dataclass(frozen=True)
class Image:
    """What an image would bring along: its first words, variables, user, and files by their place."""

    entrypoint: list[str] = field(default_factory=list)
    env: Mapping[str, str] = field(default_factory=dict)
    user: int = 0
    files: Mapping[str, Path] = field(default_factory=dict)


class Kubelet:
    """Plays every pod of the cluster until `close`.

    images: the image of a given name.
    server: variables by which a container finds the API server.
    """

    def __init__(self, api: Api, folder: Path, images: Callable[[str], Image], server: Mapping[str, str]) -> None:
        self.api = api
        self.folder = folder
        self.claims = folder / "claims"
        self.images = images
        self.server = server
        self.errors: list[str] = []
        # How namespace/name of a pod begins whose image comes only when the test says so.
        self.pulled: dict[str, threading.Event] = {}
        self._pods: dict[str, Pod] = {}
        self._closed = False
        self.nodes = Nodes(api, self.errors)
        threading.Thread(target=self._watch, daemon=True).start()

    def lose(self, node: str) -> None:
        """Cut the power of a node: its processes end, and neither their peers nor the API server hear of it."""
        self.nodes.live.remove(node)
        for pod in [pod for pod in list(self._pods.values()) if pod.node == node]:
            pod.cut()

    def logs(self, namespace: str, start: str = "") -> str:
        """What all containers of the pods whose names begin so have printed, ended ones too, in the order of time."""
        files = sorted((self.folder / "logs" / namespace).glob(f"{start}*"), key=lambda file: file.stat().st_mtime_ns)
        return "".join(f"== {file.name}\n{file.read_text(errors='replace')}" for file in files)

    def kill(self, namespace: str, name: str) -> None:
        """SIGKILL for the first process of a pod's container, as when it runs out of memory."""
        pods = [pod for pod in list(self._pods.values()) if (pod.namespace, pod.name) == (namespace, name)]
        pods[-1].kill()  # others of this name have gone

    def close(self) -> None:
        self._closed = True
        self.nodes.close()
        for pod in list(self._pods.values()):
            pod.stop(0)
        for pod in list(self._pods.values()):
            pod.join()

    def _watch(self) -> None:
        try:
            for event, found in self.api.watch("/api/v1/pods"):
                self._see(event, found)
        except Exception:
            self.errors.append(traceback.format_exc())

    def _see(self, event: str, found: Object) -> None:
        uid = found["metadata"]["uid"]
        ending = found["metadata"].get("deletionTimestamp")
        if found["spec"].get("schedulingGates"):
            return  # Kueue takes its gate away when it has said where the pod goes
        if uid not in self._pods and event != "DELETED" and not ending and not self._closed:
            number = len(self._pods) + 2
            self._pods[uid] = Pod(self, found, number)
            self._pods[uid].start()
        elif uid in self._pods and event == "DELETED":
            self._pods[uid].stop(0)
        elif uid in self._pods and ending:
            self._pods[uid].stop(found["metadata"]["deletionGracePeriodSeconds"])
        elif uid in self._pods:
            self._pods[uid].correct(found["status"].get("conditions", []))


class Pod(threading.Thread):
    """One pod from its binding to its end."""

    def __init__(self, kubelet: Kubelet, found: Object, number: int) -> None:
        super().__init__(daemon=True)
        self._kubelet = kubelet
        self._api = kubelet.api
        self._pod = found
        self._spec: Object = found["spec"]
        self.namespace: str = found["metadata"]["namespace"]
        self.name = str(found["metadata"]["name"])
        self.node = kubelet.nodes.of(f"{self.namespace}/{self.name}")
        self._path = f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"
        self._number = number
        self._folder = kubelet.folder / "pods" / str(number)
        self._sandbox: Sandbox | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._deleted = threading.Event()
        self._ending = threading.Event()  # deleted, or past its own deadline
        self._expired = False
        self._deadline = float("inf")
        self._conditions: list[Object] = []

    def run(self) -> None:
        try:
            self._live()
        except Gone:
            pass  # deleted while it was being bound or its status written, or its node is lost
        except Exception:
            self._kubelet.errors.append(f"pod {self.name}: {traceback.format_exc()}")

    def stop(self, grace_s: float) -> None:
        """End the pod: SIGTERM now, SIGKILL after the grace period or at once if there is none."""
        with self._lock:
            self._deadline = min(self._deadline, time.monotonic() + grace_s)
            if self._process is not None and not grace_s:
                send(self._process, signal.SIGKILL)
            elif self._process is not None and not self._ending.is_set():
                send(self._process, signal.SIGTERM)
            self._ending.set()
            self._deleted.set()

    def expire(self) -> None:
        """End the pod as failed, whatever its restart policy: its activeDeadlineSeconds are over."""
        with self._lock:
            if self._process is None or self._ending.is_set():
                return
            self._expired = True
            self._deadline = time.monotonic() + self._spec["terminationGracePeriodSeconds"]
            self._ending.set()
            send(self._process, signal.SIGTERM)

    def correct(self, conditions: list[Object]) -> None:
        """Say again whether it is ready: the control plane takes a node that is slow for one that is dead."""
        found = {condition["type"]: condition["status"] for condition in conditions}
        if any(found.get(told["type"]) != told["status"] for told in self._conditions):
            with suppress(Gone):
                self._tell(conditions=self._conditions)

    def cut(self) -> None:
        assert self._sandbox is not None
        self._sandbox.cut()
        self.kill()

    def kill(self) -> None:
        assert self._process is not None
        send(self._process, signal.SIGKILL)

    def _live(self) -> None:
        node = {"apiVersion": "v1", "kind": "Node", "name": self.node}
        self._api.post(f"{self._path}/binding", {"metadata": {"name": self.name}, "target": node})
        volumes = Volumes(self._api, self._pod, self._folder / "volumes", self._kubelet.claims)
        volumes.make()
        sandbox = self._sandbox = Sandbox(self._number, self._hostname(), self._folder, self._etc())
        code = 0
        try:
            self._tell(phase="Pending", podIP=sandbox.address, podIPs=[{"ip": sandbox.address}], startTime=now())
            if seconds := self._spec.get("activeDeadlineSeconds"):
                clock = threading.Timer(seconds, self.expire)
                clock.daemon = True
                clock.start()
            for start, pulled in list(self._kubelet.pulled.items()):
                late = f"{self.namespace}/{self.name}".startswith(start)
                while late and not self._ending.is_set() and not pulled.wait(0.5):
                    pass
            for container in self._spec.get("initContainers", []):
                code = code or self._run(sandbox, volumes, container, _INIT)
            if not code:
                (container,) = self._spec["containers"]  # jobs and operators have one
                code = self._run(sandbox, volumes, container, _MAIN)
            self._tell(phase="Failed" if code or self._expired else "Succeeded")
        finally:
            self._end()
            sandbox.close()
            volumes.close()
        # The API server forgets a pod only when its node says that nothing of it is left.
        self._deleted.wait()
        uid = self._pod["metadata"]["uid"]
        self._api.delete(self._path, {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})

    def _end(self) -> None:
        """Leave no process behind, also when the status could no longer be written."""
        if self._process is not None:
            send(self._process, signal.SIGKILL)
            self._process.wait()

    def _run(self, sandbox: Sandbox, volumes: Volumes, container: Object, kind: _Kind) -> int:
        """Run a container until its restart policy is content; its last exit code."""
        policy = self._spec["restartPolicy"]
        if kind is _INIT and policy == "Always":
            policy = "OnFailure"
        restarts = 0
        last: Object = {}
        while True:
            started, log = now(), self._log(container, restarts)
            code = self._once(sandbox, volumes, container, kind, restarts, last)
            reason = "Completed" if code == 0 else "Error"
            over = {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": now()}
            if code and log.exists() and container.get("terminationMessagePolicy") == "FallbackToLogsOnError":
                over["message"] = log.read_bytes()[-2048:].decode(errors="replace")
            last = {"terminated": over}
            self._tell(**{kind.statuses: [_container_status(container, restarts, last, {})]}, conditions=_ready(False))
            if self._ending.is_set() or policy == "Never" or (policy == "OnFailure" and code == 0):
                return code
            self._ending.wait(min(_LONGEST_BACKOFF_S, 10 * 2 ** (restarts - 1)) if restarts else 0)
            restarts += 1

    def _once(
        self, sandbox: Sandbox, volumes: Volumes, container: Object, kind: _Kind, restarts: int, last: Object
    ) -> int:
        """Start a container and wait for its end; its exit code."""
        if "missing" in container["image"]:
            waiting = {"waiting": {"reason": "ErrImagePull"}}
            self._tell(**{kind.statuses: [_container_status(container, restarts, waiting, last)]})
            self._ending.wait()
        prepared = self._container(sandbox, volumes, container)
        with self._lock:
            if self._ending.is_set():
                return _TERMINATED
            with self._log(container, restarts).open("wb") as output:
                process = self._process = sandbox.start(prepared, output)
        running = {"running": {"startedAt": now()}}
        ready = "readinessProbe" not in container
        told = {kind.statuses: [_container_status(container, restarts, running, last)], "phase": kind.phase}
        self._tell(**told, conditions=_ready(ready and kind is _MAIN))
        while not _ended(process, timeout_s=0.5):
            if time.monotonic() > self._deadline:
                send(process, signal.SIGKILL)
            if not ready:
                volumes.refresh()  # an operator fills its own Secret before it answers
                if ready := _answers(sandbox.address, container):
                    self._tell(conditions=_ready(True))
        with self._lock:
            self._process = None
        return process.returncode

    def _log(self, container: Object, restarts: int) -> Path:
        folder = self._kubelet.folder / "logs" / self.namespace
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{self.name}.{self._number}.{container['name']}.{restarts}"

    def _container(self, sandbox: Sandbox, volumes: Volumes, container: Object) -> Container:
        image = self._kubelet.images(container["image"])
        words, env = words_and_environment(container, self._pod, self._secrets(container), sandbox.address)
        argv = words if container.get("command") else [*image.entrypoint, *words]
        security = {**self._spec.get("securityContext", {}), **container.get("securityContext", {})}
        user = security.get("runAsUser", image.user)
        # A real one leaves such a container in CreateContainerConfigError, forever.
        assert user or not security.get("runAsNonRoot"), f"{container['name']} would run as root"
        return Container(
            argv,
            {**image.env, "HOSTNAME": self._hostname(), **self._kubelet.server, **env},
            {**image.files, **volumes.mounts(container)},
            folder=container.get("workingDir", str(REPOSITORY)),
            user=user,
            group=security.get("runAsGroup", 0),
            read_only=security.get("readOnlyRootFilesystem", False),
        )

    def _secrets(self, container: Object) -> dict[str, str]:
        """The values that a container's variables take from Secrets, by key."""
        references = [variable.get("valueFrom", {}).get("secretKeyRef") for variable in container.get("env", [])]
        values = {}
        for reference in filter(None, references):
            secret = self._api.get(f"/api/v1/namespaces/{self.namespace}/secrets/{reference['name']}")
            values[reference["key"]] = base64.b64decode(secret["data"][reference["key"]]).decode()
        return values

    def _hostname(self) -> str:
        return str(self._spec.get("hostname", self.name))

    def _etc(self) -> dict[str, str]:
        own = hostname = self._hostname()
        if "subdomain" in self._spec:
            own = f"{hostname}.{self._spec['subdomain']}.{self.namespace}.{DOMAIN} {hostname}"
        search = f"{self.namespace}.{DOMAIN} {DOMAIN} {DOMAIN.removeprefix('svc.')}"
        return {
            "/etc/resolv.conf": f"nameserver {GATEWAY}\nsearch {search}\noptions ndots:5\n",
            "/etc/hosts": f"127.0.0.1 localhost\n{address_of(self._number)} {own}\n",
            "/etc/hostname": f"{hostname}\n",
            # What the training operator's init container calls; it asks the same name server.
            "/bin-of-images/nslookup": '#!/bin/sh\nexec getent ahosts "$1"\n',
        }

    def _tell(self, **status: Any) -> None:
        """Write part of the pod's status; a node that is lost writes nothing any more."""
        if self.node not in self._kubelet.nodes.live:
            raise Gone(self._path)
        self._conditions = status.get("conditions", self._conditions)
        self._api.patch(f"{self._path}/status", {"status": {"hostIP": GATEWAY, **status}})


def _ended(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _answers(address: str, container: Object) -> bool:
    """Whether a container says that it is ready."""
    probe = container["readinessProbe"]["httpGet"]
    ports = {port.get("name"): port["containerPort"] for port in container["ports"]}
    port = ports.get(probe["port"], probe["port"])
    try:
        with urllib.request.urlopen(f"http://{in_url(address)}:{port}{probe['path']}", timeout=3):
            return True
    except OSError:
        return False


def _container_status(container: Object, restarts: int, state: Object, last: Object) -> Object:
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "restartCount": restarts,
        "ready": "running" in state,
        "started": "running" in state,
        "state": state,
        "lastState": last,
    }


def _ready(ready: bool) -> list[Object]:
    return [{"type": kind, "status": str(ready)} for kind in ("Ready", "ContainersReady")]
