"""A real API server with etcd, the controllers of Kubernetes itself, and the operators from their own manifests."""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.cli import HANG_S
from tests.e2e.k8s.parts import Parts
from tests.e2e.k8s.sandbox import GATEWAY, IPV6, in_url

PORT = 6443
# The API server's variables in every pod; no proxy stands before it, so it is named by its own address.
SERVER = {"KUBERNETES_SERVICE_HOST": GATEWAY, "KUBERNETES_SERVICE_PORT": str(PORT)}
_URL = f"https://{in_url(GATEWAY)}:{PORT}"
_SERVICES = "fd00:96::/112" if IPV6 else "10.96.0.0/16"
_TOKEN = "administrator"  # reachable from the pods' network only, which ends with this process
_CONTROLLERS = """
    deployment-controller endpointslice-controller garbage-collector-controller job-controller namespace-controller
    node-lifecycle-controller persistentvolumeclaim-protection-controller pod-garbage-collector-controller
    replicaset-controller resourceclaim-controller resourcequota-controller root-ca-certificate-publisher-controller
    serviceaccount-controller taint-eviction-controller ttl-after-finished-controller
"""

# Of the operators: on a busy machine one would lose its lease, and start again later each time; Kueue 0.19 manages the
# jobs of the training operator only if told to.
_CONFIGURATION = {
    "leaderElect: true": "leaderElect: false",
    '# - "kubeflow.org/pytorchjob"': '- "kubeflow.org/pytorchjob"',
}


class ControlPlane:
    """etcd, kube-apiserver and, where it is to be had, kube-controller-manager, with their files in `folder`."""

    def __init__(self, parts: Parts, folder: Path) -> None:
        self._parts = parts
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self.kubeconfig = folder / "kubeconfig"

    def start(self) -> None:
        folder = self._folder
        folder.mkdir(parents=True)
        (folder / "tokens").write_text(f'{_TOKEN},admin,admin,"system:masters"\n')
        for command in (
            "openssl genrsa -out accounts.key 2048",
            "openssl rsa -in accounts.key -pubout -out accounts.pub",
        ):
            subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
        client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
        self._run(
            "etcd",
            *("--data-dir=etcd", "--unsafe-no-fsync", "--log-level=error"),
            *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}"),
            *(f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}"),
        )
        self._run(
            "kube-apiserver",
            *(f"--etcd-servers={client}", f"--bind-address={GATEWAY}", f"--advertise-address={GATEWAY}"),
            *(f"--secure-port={PORT}", "--cert-dir=certificates", "--token-auth-file=tokens"),
            *("--authorization-mode=RBAC", f"--service-cluster-ip-range={_SERVICES}"),
            "--service-account-issuer=https://kubernetes.default.svc",
            *("--service-account-key-file=accounts.pub", "--service-account-signing-key-file=accounts.key"),
            # Webhooks are called at the addresses of their pods; there is no proxy for addresses of Services.
            "--enable-aggregator-routing",
            "--allow-privileged",
        )
        self._write_kubeconfig()
        self._until(lambda: self._kubectl("get", "--raw", "/readyz").returncode == 0, "the API server is ready")
        if "kube-controller-manager" in self._parts.programs:
            self._run(
                "kube-controller-manager",
                *(f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--secure-port=0"),
                *(f"--controllers={','.join(_CONTROLLERS.split())}", "--service-account-private-key-file=accounts.key"),
                *("--root-ca-file=certificates/apiserver.crt", "--kube-api-qps=100", "--kube-api-burst=200"),
            )

    def install(self, operators: Sequence[str]) -> None:
        """Apply the operators' manifests and wait until all answer; their pods are played by the tests' kubelet."""
        kueue = {"kueue"} & set(operators)
        for names in (set(operators) - kueue, kueue):  # Kueue's webhooks look at every pod, those of the others, too
            for name in sorted(names):
                text = self._parts.manifests[name].read_text()
                for shipped, ours in _CONFIGURATION.items():
                    text = text.replace(shipped, ours)
                # By the server: the definitions are too large for the annotation that the client would leave.
                self._checked("apply", "--server-side", "--filename", "-", text=text)
            everywhere = ("deployments", "--all", "--all-namespaces")
            self._checked("wait", "--for=condition=Available", f"--timeout={HANG_S}s", *everywhere)

    def close(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()

    def _run(self, name: str, *options: str) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            command = [str(self._parts.programs[name]), *options]
            started = subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log, start_new_session=True)
        self._processes.append(started)

    def _write_kubeconfig(self) -> None:
        certificate = self._folder / "certificates" / "apiserver.crt"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "e2e",
                    "cluster": {"server": _URL, "certificate-authority": str(certificate)},
                }
            ],
            "users": [{"name": "e2e", "user": {"token": _TOKEN}}],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "e2e"}}],
            "current-context": "e2e",
        }
        self.kubeconfig.write_text(json.dumps(config))

    def _kubectl(self, *words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        command = ["kubectl", "--kubeconfig", str(self.kubeconfig), *words]
        return subprocess.run(command, input=text, capture_output=True, text=True)

    def _checked(self, *words: str, text: str | None = None) -> None:
        done = self._kubectl(*words, text=text)
        if done.returncode:
            raise RuntimeError(f"kubectl {' '.join(words)}: {done.stderr}\n{self._last_words()}")

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + HANG_S
        while not condition():
            if time.monotonic() > end or any(process.poll() is not None for process in self._processes):
                raise RuntimeError(f"it did not come to pass that {what}\n{self._last_words()}")
            time.sleep(0.2)

    def _last_words(self) -> str:
        logs = sorted(self._folder.glob("*.log"))
        return "\n".join(f"== {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)
