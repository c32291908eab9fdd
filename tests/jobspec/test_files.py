"""`files`: the user's own code arrives in the containers where `command` looks for it, byte for byte."""

import re
from pathlib import Path

import kubernetes_validate
import pytest

from jobspec import kubernetes
from jobspec.artifact import render
from jobspec.problems import SpecError
from tests.clusters import KINDS, documents, of_kind, pod_templates
from tests.compose import read

SPEC = """
name: job
nodes: 1
procs_per_node: 1
device: cpu
image: a/b:1
command: [code/train.py, x]
files: [code/train.py, "code/**/*.py", "with blank.txt"]
"""
TRAIN = "\n  # begins with a blank line: …\nimport sys\n\tfrom lib import one\n" + "text = '{{ 7 }} ${A} $(B)'\n" * 3
FILES = {
    "code/train.py": TRAIN,
    "code/lib/one.py": "value = 1",
    "code/lib/two.py": "\n\n",
    "with blank.txt": "no line break at the end, but \r and \x85\n\n\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the spec and its files."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(text.encode())
    (tmp_path / "job.yaml").write_text(SPEC)
    return tmp_path


def in_pods(text: str) -> list[dict[str, str]]:
    """The text of each file of the ConfigMap by its path, in each pod template."""
    data = of_kind(documents(text), "ConfigMap")["data"]
    found = []
    for template in pod_templates(documents(text)):
        (container,) = template["spec"]["containers"]
        (volume,) = (one for one in template["spec"]["volumes"] if one["name"] == "files")
        assert volume["configMap"]["name"] == of_kind(documents(text), "ConfigMap")["metadata"]["name"]
        mounts = [mount for mount in container["volumeMounts"] if mount["name"] == "files"]
        found.append({mount["mountPath"]: data[mount["subPath"]] for mount in mounts})
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_in_the_pods_where_command_looks(kind: str, folder: Path) -> None:
    text = render(kind, "job.yaml", ["nodes=2"])
    for files in in_pods(text):
        assert files == {f"/scratch/{name}": content for name, content in FILES.items()}
    for template in pod_templates(documents(text)):
        assert template["spec"]["containers"][0]["workingDir"] == "/scratch"
    config_map = of_kind(documents(text), "ConfigMap")
    for version in (kubernetes.OLDEST, kubernetes.NEWEST):
        kubernetes_validate.validate(config_map, version, strict=True)
    assert config_map["metadata"]["labels"]["app.kubernetes.io/instance"] == "job"
    assert "/app/code/train.py" in in_pods(render(kind, "job.yaml", ["workdir=/app"]))[0]


def test_edited_file_is_in_the_next_manifest(folder: Path) -> None:
    before = render("jobset", "job.yaml")
    (folder / "code" / "lib" / "one.py").write_text("value = 2")
    assert [files["/scratch/code/lib/one.py"] for files in in_pods(render("jobset", "job.yaml"))] == ["value = 2"]
    assert render("jobset", "job.yaml") != before


def test_runtime_of_the_cluster_gets_the_files_as_patches(folder: Path) -> None:
    text = render("trainjob", "job.yaml", ["kubernetes.runtime=torch-distributed"])
    config_map, _, job = documents(text)
    assert config_map["kind"] == "ConfigMap"
    assert "cd /scratch" in job["spec"]["trainer"]["command"]
    (patched,) = job["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    (container,) = patched["template"]["spec"]["template"]["spec"]["containers"]
    assert len([mount for mount in container["volumeMounts"] if mount["name"].startswith("files-")]) == len(FILES)


def test_compose_file_holds_the_files(folder: Path) -> None:
    found = read(render("compose", "job.yaml"), {})
    (service,) = found["services"].values()
    assert service["working_dir"] == "/scratch"
    texts = {one["target"]: found["configs"][one["source"]]["content"] for one in service["configs"]}
    # compose leaves out a file that is empty
    assert texts == {f"/scratch/{name}": text or "\n" for name, text in FILES.items()}


def test_a_program_stays_one(folder: Path) -> None:
    assert "0555" not in render("jobset", "job.yaml") + render("compose", "job.yaml")
    (folder / "code" / "train.py").chmod(0o755)
    (template,) = pod_templates(documents(render("jobset", "job.yaml")))
    assert [one["configMap"]["defaultMode"] for one in template["spec"]["volumes"] if "configMap" in one] == [0o555]
    (service,) = read(render("compose", "job.yaml"), {})["services"].values()
    assert {one["target"] for one in service["configs"] if one.get("mode") == 0o555} == {"/scratch/code/train.py"}


@pytest.mark.parametrize("target", ["slurm", "torchrun"])
def test_where_the_folder_itself_is_seen_nothing_travels_and_the_head_says_so(target: str, folder: Path) -> None:
    assert "# Not used here: files; " in render(target, "job.yaml")
    assert "value = 1" not in render(target, "job.yaml")
    assert re.search("# Not used here: files; .*(workdir|/code)", render(target, "job.yaml", ["workdir=/code"]))


@pytest.mark.parametrize("target", ["compose", "jobset"])
def test_files_that_cannot_travel_are_refused_all_at_once(target: str, folder: Path) -> None:
    (folder / "weights.bin").write_bytes(b"\xff\xfe")
    (folder / "a:b.py").write_text("")
    (folder / "zero.txt").write_text("\0")
    with pytest.raises(SpecError) as error:
        render(target, "job.yaml", ['files=["weights.bin", "no/*.py", "a:b.py", "zero.txt", train.py]'])
    messages = [problem.message for problem in error.value.problems]
    assert messages == [
        "files[0]: weights.bin is unusable: it is not UTF-8 text",
        'files[1]: no file here is called "no/*.py"',
        "files[2]: a:b.py is unusable: its name has characters that are not allowed in mounts of containers",
        "files[3]: zero.txt is unusable: it contains a zero byte",
        'files[4]: no file here is called "train.py"',
    ]


@pytest.mark.parametrize("target", ["compose", "jobset"])
@pytest.mark.parametrize("pattern", ["a" * 300, "a/" * 3000], ids=["long", "deep"])
def test_pattern_that_the_system_refuses_is_a_problem_of_the_spec(target: str, pattern: str, folder: Path) -> None:
    with pytest.raises(SpecError) as error:
        render(target, "job.yaml", [f"files=[{pattern}]"])
    assert [problem.message.partition(":")[0] for problem in error.value.problems] == ["files[0]"]
