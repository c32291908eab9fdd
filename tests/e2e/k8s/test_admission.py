"""The API server and the operators' webhooks take what we render, without a word about a field they do not know."""

import json
import re
from pathlib import Path

import pytest

from jobspec import targets
from jobspec.artifact import load, render
from jobspec.problems import SpecError
from tests.cli import HANG_S
from tests.clusters import KINDS, documents
from tests.e2e.k8s.cluster import Cluster
from tests.e2e.k8s.sandbox import REPOSITORY
from tests.e2e.k8s.specs import job, rendered

SPECS = [*sorted((REPOSITORY / "jobs").glob("*.yaml")), *sorted((REPOSITORY / "tests/specs/ok").glob("*.yaml"))]
EXAMPLES = sorted((REPOSITORY / "k8s").glob("*.yaml"))
# Kinds of schedulers and queues; a cluster without them skips what needs them.
FOREIGN = ("ClusterQueue", "PodGroup")
# Gang schedulers are not among the parts.  What we may write into their PodGroups beside minMember, from the types of
# volcano.sh/apis 1.14 and scheduler-plugins 0.35.
PODGROUPS = {"scheduling.volcano.sh/v1beta1": ("queue", "priorityClassName"), "scheduling.x-k8s.io/v1alpha1": ()}


@pytest.fixture(scope="session", autouse=True)
def podgroups(cluster: Cluster) -> None:
    """The API server of the parts knows the PodGroups of gang schedulers."""
    if cluster.kubelet is None:
        return
    for place, texts in PODGROUPS.items():
        group, version = place.split("/")
        fields = {"minMember": {"type": "integer", "minimum": 1}, **{key: {"type": "string"} for key in texts}}
        schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": fields}}}
        served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        names = {"kind": "PodGroup", "plural": "podgroups"}
        head = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
        spec = {"group": group, "names": names, "scope": "Namespaced", "versions": [served]}
        cluster.apply(json.dumps({**head, "metadata": {"name": f"podgroups.{group}"}, "spec": spec}))
        cluster.kubectl("wait", "--for=condition=Established", f"crd/podgroups.{group}", f"--timeout={HANG_S}s")
    # The webhook of TrainJob looks a PriorityClass up, which Trainer's own role does not permit.
    for words in (
        "priorityclass high --value=1",
        "clusterrole priorities --verb=get,list,watch --resource=priorityclasses",
        "clusterrolebinding priorities --clusterrole=priorities --group=system:serviceaccounts:kubeflow-system",
    ):
        cluster.kubectl("create", *words.split())


def of_targets(files: list[Path]) -> list[object]:
    found: list[object] = []
    for spec in files:
        for target in KINDS:
            try:
                load(targets.load(target), str(spec))
            except SpecError:
                continue
            found.append(pytest.param(spec, target, id=f"{spec.stem}-{target}"))
    return found


@pytest.mark.parametrize(("spec", "target"), of_targets(SPECS))
def test_rendered_manifest_is_admitted_without_a_warning(
    spec: Path, target: str, cluster: Cluster, namespace: str
) -> None:
    cluster.needs(target)
    admitted(cluster, render(target, str(spec), [f"kubernetes.namespace={namespace}"]), namespace)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_example_is_admitted_without_a_warning(example: Path, cluster: Cluster, namespace: str) -> None:
    if example.name.count(".") > 1:
        cluster.needs(example.name.split(".")[-2])
    text = re.sub('namespace: "?change-me"?', f"namespace: {namespace}", example.read_text())
    admitted(cluster, text, namespace)


def admitted(cluster: Cluster, manifests: str, namespace: str) -> None:
    found = documents(manifests)
    for manifest in found:
        resource = f"{manifest['kind']}.{manifest['apiVersion'].partition('/')[0]}"
        if "podGroupPolicy" in manifest.get("spec", {}):
            resource = "PodGroup.scheduling.volcano.sh"  # which Trainer makes
        if resource.startswith(FOREIGN) and cluster.try_kubectl("get", resource).returncode:
            pytest.skip(f"this cluster has no {resource}")
    # Really made, not a dry run: a TrainJob is held against the runtime before it.
    made = cluster.apply(manifests)
    lines = made.splitlines()
    assert len({line for line in lines if line.endswith(" serverside-applied")}) == len(found)


PATCHES: dict[str, dict[str, object]] = {
    "sidecar": {
        "pod": {"initContainers": [{"name": "log", "image": "a", "command": ["true"], "restartPolicy": "Always"}]}
    },
    "privileged": {
        "security": "privileged",
        "pod": {"containers": [{"name": "node", "securityContext": {"privileged": True}}]},
    },
    "gpus-by-claim": {"gpu_claim": "gpus"},
}


@pytest.mark.parametrize("patch", PATCHES)
@pytest.mark.parametrize("target", KINDS)
def test_pods_are_made_where_the_standard_of_the_job_is_enforced(
    target: str, patch: str, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    cluster.needs_controllers(target)
    kubernetes = PATCHES[patch]
    standard = kubernetes.get("security", "restricted")
    cluster.kubectl("label", "namespace", namespace, f"pod-security.kubernetes.io/enforce={standard}")
    device = "cuda" if "gpu_claim" in kubernetes else "cpu"
    spec = job(cluster.image, command=["jobs/scripts/own.py", "--steps", "1"], kubernetes=kubernetes)
    cluster.apply(rendered(target, {**spec, "nodes": 1, "device": device}, namespace, tmp_path))
    cluster.until(lambda: len(cluster.pods(namespace)) == 1, "the pod is there")


def test_misspelt_field_is_refused(cluster: Cluster, namespace: str) -> None:
    """The check that the checks above can fail."""
    good = render("indexedjob", str(REPOSITORY / "jobs/own-script.yaml"), [f"kubernetes.namespace={namespace}"])
    wrong = good.replace("backoffLimit:", "backofLimit:")
    done = cluster.try_kubectl("apply", "--server-side", "--filename", "-", text=wrong)
    assert done.returncode and ".spec.backofLimit: field not declared in schema" in done.stderr
