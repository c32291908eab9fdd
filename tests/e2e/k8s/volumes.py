"""The volumes of a pod as folders of this machine: what the kubelet makes of each kind.

A claim is a folder by its name and namespace, which outlives the pods: a file system that all nodes see.
"""

import base64
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.e2e.k8s.api import Api, Gone, Object


class Volumes:
    """The volumes of one pod, in `folder`; claims in `claims`."""

    def __init__(self, api: Api, pod: Object, folder: Path, claims: Path) -> None:
        self._api = api
        self._namespace: str = pod["metadata"]["namespace"]
        self._account = pod["spec"].get("serviceAccountName", "default")
        self._folder = folder
        self._claims = claims
        self._volumes: list[Object] = pod["spec"].get("volumes", [])
        self._mounted: list[Path] = []

    def make(self) -> None:
        for volume in self._volumes:
            path = self._path(volume)
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o777)
            if volume.get("emptyDir", {}).get("medium") == "Memory":
                options = f"mode=1777,size={_bytes(volume['emptyDir'].get('sizeLimit', '0'))}"
                subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], check=True)
                self._mounted.append(path)
            self._write(volume)

    def refresh(self) -> None:
        """Write the Secrets as the API server holds them now; an operator fills its own after it has started."""
        for volume in self._volumes:
            if "secret" in volume:
                self._write(volume)

    def mounts(self, container: Object) -> dict[str, Path]:
        """Where in a container which folder or file is."""
        found = {}
        for mount in container.get("volumeMounts", []):
            (volume,) = (one for one in self._volumes if one["name"] == mount["name"])
            path = found[mount["mountPath"]] = self._path(volume) / mount.get("subPath", "")
            if "emptyDir" in volume:  # a folder that is not there yet gets the rights of its volume
                path.mkdir(exist_ok=True)
                path.chmod(0o777)
        return found

    def close(self) -> None:
        for path in self._mounted:
            subprocess.run(["umount", "--lazy", path], check=True)

    def _write(self, volume: Object) -> None:
        for name, content in self._files(volume):
            file = self._path(volume) / name
            if not file.exists() or file.read_bytes() != content:
                beside = file.with_name(f".{file.name}")
                beside.write_bytes(content)
                beside.chmod(0o644)
                beside.rename(file)

    def _path(self, volume: Object) -> Path:
        if "persistentVolumeClaim" in volume:
            return self._claims / self._namespace / str(volume["persistentVolumeClaim"]["claimName"])
        return self._folder / str(volume["name"])

    def _files(self, source: Object) -> Iterator[tuple[str, bytes]]:
        """The files of a volume, or of one source of a projected one."""
        if "secret" in source:
            secret = self._get("secrets", source["secret"].get("secretName") or source["secret"]["name"])
            yield from ((key, base64.b64decode(value)) for key, value in secret.get("data", {}).items())
        elif "configMap" in source:
            data = self._get("configmaps", source["configMap"]["name"]).get("data", {})
            yield from ((key, value.encode()) for key, value in data.items())
        elif "serviceAccountToken" in source:
            path = f"/api/v1/namespaces/{self._namespace}/serviceaccounts/{self._account}/token"
            kind = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
            granted = self._api.post(path, {**kind, "spec": {"expirationSeconds": 7200}})
            yield source["serviceAccountToken"]["path"], granted["status"]["token"].encode()
        elif "downwardAPI" in source:
            for item in source["downwardAPI"]["items"]:
                assert item["fieldRef"]["fieldPath"] == "metadata.namespace"
                yield item["path"], self._namespace.encode()
        elif "projected" in source:
            for projected in source["projected"]["sources"]:
                yield from self._files(projected)

    def _get(self, kind: str, name: str) -> Object:
        try:
            return self._api.get(f"/api/v1/namespaces/{self._namespace}/{kind}/{name}")
        except Gone:
            return {}


def _bytes(quantity: str) -> int:
    """2Gi → 2147483648; all that our manifests write."""
    shifts = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}
    return int(quantity[:-2]) << shifts[quantity[-2:]] if quantity[-2:] in shifts else int(quantity)
