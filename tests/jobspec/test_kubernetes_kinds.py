"""What each kind of job object demands of its fields, rule by rule: restarts, deadlines, gangs, lengths of names."""

import re

import pytest

from jobspec.problems import SpecError
from tests.clusters import KINDS, manifests_of, of_kind, pod_templates


@pytest.mark.parametrize(("restarts", "policy", "limit"), [(0, "Never", 0), (3, "OnFailure", 10)])
def test_pytorchjob_allows_one_restart_of_each_pod_for_a_restart_of_the_job(
    restarts: int, policy: str, limit: int
) -> None:
    manifests = manifests_of("pytorchjob", "restricted", f"max_restarts={restarts}", "preemption=null")
    spec = of_kind(manifests, "PyTorchJob")["spec"]
    assert {replica["restartPolicy"] for replica in spec["pytorchReplicaSpecs"].values()} == {policy}
    assert spec["runPolicy"]["backoffLimit"] == limit  # the operator ends the job at this one


def test_indexed_job_replaces_pods_one_by_one() -> None:
    spec = of_kind(manifests_of("indexedjob", "restricted"), "Job")["spec"]
    assert (spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (3, 3, 9)
    assert spec["backoffLimitPerIndex"] == 9  # else 7 failed pods are followed by a wait of 10 minutes
    assert spec["podReplacementPolicy"] == "Failed"
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert "hostname" not in spec["template"]["spec"]
    assert spec["activeDeadlineSeconds"] == 7200
    assert spec["ttlSecondsAfterFinished"] == 86400
    preempted = {"type": "DisruptionTarget", "status": "True"}
    assert spec["podFailurePolicy"]["rules"] == [{"action": "Ignore", "onPodConditions": [preempted]}]


def test_time_limit_ends_a_jobset_and_is_no_reason_to_restart_it() -> None:
    spec = of_kind(manifests_of("jobset", "restricted"), "JobSet")["spec"]
    assert spec["replicatedJobs"][0]["template"]["spec"]["activeDeadlineSeconds"] == 7200
    names = [rule["name"] for rule in spec["failurePolicy"]["rules"]]
    assert all(re.fullmatch("[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", name) for name in names)  # as its webhook has it
    rules = {rule["onJobFailureReasons"][0]: rule["action"] for rule in spec["failurePolicy"]["rules"]}
    assert rules == {"DeadlineExceeded": "FailJobSet", "PodFailurePolicy": "RestartJobSetAndIgnoreMaxRestarts"}


@pytest.mark.parametrize("target", ["indexedjob", "jobset"])
@pytest.mark.parametrize(
    ("scheduler", "key", "section"),
    [
        ("volcano", "scheduling.k8s.io/group-name", "annotations"),
        ("scheduler-plugins-scheduler", "scheduling.x-k8s.io/pod-group", "labels"),
    ],
)
def test_gang_scheduler_gets_a_group_of_all_pods(target: str, scheduler: str, key: str, section: str) -> None:
    manifests = manifests_of(target, "restricted", f"kubernetes.scheduler={scheduler}")
    group = of_kind(manifests, "PodGroup")
    assert manifests.index(group) < len(manifests) - 1
    assert group["spec"]["minMember"] == 3
    (pod,) = pod_templates(manifests)
    assert pod["metadata"][section][key] == group["metadata"]["name"]
    assert pod["spec"]["schedulerName"] == scheduler


@pytest.mark.parametrize("target", KINDS)
def test_objects_say_what_they_are_and_the_top_one_has_the_annotations(target: str) -> None:
    manifests = manifests_of(
        target, "restricted", "kubernetes.annotations={example.com/note: a, karpenter.sh/do-not-disrupt: no}"
    )
    common = {"app.kubernetes.io/instance": "kubernetes-restricted", "team": "no"}
    for manifest in [*manifests, *pod_templates(manifests)]:
        assert common.items() <= manifest["metadata"]["labels"].items()
    note = {"example.com/note": "a", "karpenter.sh/do-not-disrupt": "no"}
    assert [one["metadata"].get("annotations") for one in manifests] == [None] * (len(manifests) - 1) + [note]
    assert note.items() <= pod_templates(manifests)[0]["metadata"]["annotations"].items()
    if target == "trainjob":  # whose JobSet gets those of the runtime
        (runtime,) = (one for one in manifests if one["kind"] == "TrainingRuntime")
        assert runtime["spec"]["template"]["metadata"]["annotations"] == note


@pytest.mark.parametrize("target", KINDS)
def test_further_resources_are_limits(target: str) -> None:
    """The API server takes each limit as the request, too."""
    devices = {"vpc.amazonaws.com/efa": "32", "hugepages-2Mi": "4Gi", "ephemeral-storage": "512Mi"}
    written = "{vpc.amazonaws.com/efa: 32, hugepages-2Mi: 4GiB, ephemeral-storage: 512MiB}"
    (template, *_) = pod_templates(manifests_of(target, "restricted", f"resources.devices={written}"))
    limits = {"cpu": "32", "memory": "200Gi", "nvidia.com/gpu": "8", **devices}
    assert template["spec"]["containers"][0]["resources"] == {"limits": limits}


def test_root_runs_under_baseline() -> None:
    (template, *_) = pod_templates(manifests_of("jobset", "privileged", "kubernetes.run_as_user=0"))
    assert template["spec"]["securityContext"]["runAsUser"] == 0
    assert "runAsNonRoot" not in template["spec"]["securityContext"]


def test_longest_names_are_those_of_the_kinds() -> None:
    for target, longest in {"pytorchjob": 54, "trainjob": 48, "jobset": 48, "indexedjob": 61}.items():
        manifests_of(target, "least", f"name={'a' * longest}")
        with pytest.raises(SpecError, match=f"name has {longest + 1} characters"):
            manifests_of(target, "least", f"name={'a' * (longest + 1)}")
    # Numbers of nodes with more digits leave less room.
    with pytest.raises(SpecError, match='"<name>-worker-10"'):
        manifests_of("pytorchjob", "least", f"name={'a' * 54}", "nodes=12")
