"""The API server's own HTTP interface, through `kubectl proxy`: whatever cluster kubectl talks to, and no keys here."""

import http.client
import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

Object = dict[str, Any]

# What Go's clients say when the server did not answer in time.
BUSY = ("client connection lost", "TLS handshake timeout")
_STRATEGIC = "application/strategic-merge-patch+json"


class Api:
    """Objects by their path, such as /api/v1/namespaces/default/pods/a."""

    def __init__(self, kubeconfig: str | None) -> None:
        options = ["--kubeconfig", kubeconfig] if kubeconfig else []
        self._closed = False
        command = ["kubectl", *options, "proxy", "--port=0"]
        self._proxy = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self._proxy.stdout is not None
        self._url = "http://" + self._proxy.stdout.readline().split()[-1]

    def get(self, path: str) -> Object:
        return self._call("GET", path)

    def post(self, path: str, body: Object) -> Object:
        return self._call("POST", path, body)

    def patch(self, path: str, body: Object) -> Object:
        return self._call("PATCH", path, body, _STRATEGIC)

    def delete(self, path: str, body: Object) -> Object:
        return self._call("DELETE", path, body)

    def watch(self, path: str) -> Iterator[tuple[str, Object]]:
        """All objects of a list and then every change, until `close`: ADDED, MODIFIED or DELETED, and the object."""
        while not self._closed:
            try:
                yield from self._watch(path)
            except (OSError, http.client.HTTPException):
                time.sleep(1)  # the server is busy, or `close` was called

    def close(self) -> None:
        self._closed = True
        self._proxy.kill()
        self._proxy.wait()

    def _watch(self, path: str) -> Iterator[tuple[str, Object]]:
        listed = self.get(path)
        yield from (("ADDED", found) for found in listed["items"])
        version = listed["metadata"]["resourceVersion"]
        while True:  # the server ends each watch after a while; the next one begins where it stopped
            with urllib.request.urlopen(f"{self._url}{path}?watch=true&resourceVersion={version}") as stream:
                for line in stream:
                    event = json.loads(line)
                    if event["type"] == "ERROR":  # the version is too old by now: list again
                        return
                    version = event["object"]["metadata"]["resourceVersion"]
                    yield event["type"], event["object"]

    def _call(self, method: str, path: str, body: Object | None = None, kind: str = "application/json") -> Object:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": kind}, method=method)
        try:
            with urllib.request.urlopen(request) as answer:
                found: Object = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            reason = error.read().decode()
            if method != "POST" and (error.code == 504 or any(why in reason for why in BUSY)):
                return self._call(method, path, body, kind)
            if error.code in (404, 409) or '"NamespaceTerminating"' in reason:
                raise Gone(path) from None
            raise RuntimeError(f"{method} {path}: {error.code} {reason}") from None


class Gone(Exception):
    """The object is not there, or no longer as it was, or its namespace is being deleted."""
