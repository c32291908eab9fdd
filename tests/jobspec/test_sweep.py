"""`sweep`: each combination has its own values and folders, wherever and however it runs."""

import re
from pathlib import Path
from typing import Any

import pytest

from jobspec.artifact import render
from jobspec.problems import SpecError
from tests.clusters import KINDS, documents, processes
from tests.compose import read
from tests.slurm import NVIDIA_SMI, Cluster, directives
from tests.workers import words

SPEC = """
name: job
nodes: 2
procs_per_node: 1
device: cpu
image: a/b:1
train:
  {model: mlp, dataset: synthetic, seed: 5, run_dir: "/runs/it's $a/", checkpoint_dir: /checkpoints, export: /e.x/w}
sweep:
  train.lr: [0.1, 0.01]
  train.data_root: [a b, "$(touch pwned) ${A} $$"]
  env.NOTE: ["'; touch pwned;'", "$(touch pwned)"]
"""


def flags_of(number: int) -> set[str]:
    """What combination `number` has of its own: the last key changes fastest."""
    root = ["a b", "$(touch pwned) ${A} $$"][number // 2 % 2]
    written = {
        f"--run-dir=/runs/it's $a/{number}",
        f"--checkpoint-dir=/checkpoints/{number}",
        f"--export=/e.x/w-{number}",
    }
    return {f"--lr={[0.1, 0.01][number // 4]}", f"--data-root={root}", *written}


def check(argv: list[str], env: Any, number: int) -> None:
    argv = words(argv)
    assert flags_of(number) | {"--model=mlp", "--seed=5"} <= set(argv)
    assert len({word.partition("=")[0] for word in argv}) == len(argv)
    assert env["NOTE"] == ["'; touch pwned;'", "$(touch pwned)"][number % 2]


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
@pytest.mark.parametrize("runtime", ["none", "docker", "pyxis"])
def test_each_task_of_the_array_has_its_own(runtime: str, launcher: str, spec: str, own_cluster: Cluster) -> None:
    own_cluster.install_recorder("python3")
    own_cluster.install("nvidia-smi", NVIDIA_SMI)
    script = render("slurm", spec, [f"slurm.runtime={runtime}", f"slurm.launcher={launcher}"])
    assert directives(script)["array"] == "0-7"
    assert directives(script)["output"] == "job-%A_%a.log"
    for number in (0, 3, 6) if runtime == "none" else (6,):
        code, out = own_cluster.run(script, SLURM_ARRAY_JOB_ID="9", SLURM_ARRAY_TASK_ID=str(number))
        assert code == 0, out
        calls = own_cluster.calls()
        assert len(calls) == 2
        for call in calls.values():
            check(call.argv, call.env, number)
    if runtime == "none":
        assert own_cluster.run(script, SLURM_ARRAY_JOB_ID="9", SLURM_ARRAY_TASK_ID="8")[0] != 0
    assert not list(own_cluster.folder.rglob("pwned"))


def test_a_sweep_of_a_thousand_starts(tmp_path: Path, own_cluster: Cluster) -> None:
    """Linux allows 128 KiB for an exported function."""
    own_cluster.install_recorder("torchrun")
    ten = str([f"a/{'long/' * 9}folder-{number}" for number in range(10)])
    sweep = f"sweep: {{args.to: {ten}, args.from: {ten}, env.PLACE: {ten}}}\n"
    (tmp_path / "job.yaml").write_text(f"name: job\nnodes: 1\nprocs_per_node: 1\ndevice: cpu\ncommand: [x.py]\n{sweep}")
    own_cluster.nodes = ("n1",)
    script = render("slurm", str(tmp_path / "job.yaml"))
    code, out = own_cluster.run(script, SLURM_ARRAY_JOB_ID="9", SLURM_ARRAY_TASK_ID="789")
    assert code == 0, out
    (call,) = own_cluster.calls().values()
    assert [call.argv[-2][-1], call.argv[-1][-1], call.env["PLACE"][-1]] == ["7", "8", "9"], call.argv


@pytest.mark.parametrize("kind", KINDS)
def test_each_object_has_its_own(kind: str, spec: str) -> None:
    manifests = documents(render(kind, spec))
    tops = [one["metadata"]["name"] for one in manifests if one["kind"].lower() in (kind, "job")]
    assert tops == [f"job-{number}" for number in range(8)]
    for number in range(8):
        own = [one for one in manifests if one["metadata"]["name"] == f"job-{number}"]
        for process in processes(kind, own, {}):
            check(process.argv, process.env, number)
    assert documents(render(kind, spec, sweep_index=3)) == [
        one for one in manifests if one["metadata"]["name"] == "job-3"
    ]


@pytest.mark.parametrize(("given", "secret"), [([], "job"), (["kubernetes.secret=ours"], "ours")])
@pytest.mark.parametrize("kind", KINDS)
def test_all_objects_read_the_same_secret(kind: str, given: list[str], secret: str, spec: str) -> None:
    manifests = render(kind, spec, ["secrets=[TOKEN]", *given])
    assert manifests.count(f'Needed beforehand: Secret "{secret}" with the keys TOKEN.') == 8
    assert set(re.findall(r"secretKeyRef: .*name: \"?([a-z0-9-]+)", manifests)) == {secret}


def test_one_combination_runs_elsewhere(spec: str) -> None:
    for service in read(render("compose", spec, sweep_index=6), {})["services"].values():
        check([*service["entrypoint"], *service["command"]], service["environment"], 6)
    assert "render-job torchrun job.yaml --sweep-index 6`" in render("torchrun", spec, sweep_index=6)
    for target in ("torchrun", "compose"):
        with pytest.raises(SpecError, match=r"choose one with --sweep-index, 0 to 7"):
            render(target, spec)


def test_index_outside_of_the_sweep_is_refused(spec: str) -> None:
    with pytest.raises(SpecError, match="the sweep has 8 combinations, numbered 0 to 7"):
        render("slurm", spec, sweep_index=8)
    with pytest.raises(SpecError, match="the spec has no sweep"):
        render("slurm", spec, ["sweep="], sweep_index=0)
    with pytest.raises(SpecError, match="sweep has 1024 combinations; at most 1000"):
        render("slurm", spec, ["sweep={train.seed: " + str(list(range(32))) + ", train.epochs: " + str([1] * 32) + "}"])


def test_exported_file_keeps_its_suffix(spec: str) -> None:
    assert "--export=/e/w-3.safetensors" in render("torchrun", spec, ["train.export=/e/w.safetensors"], sweep_index=3)


def test_wrong_value_under_a_wrong_name_is_a_mistake_of_the_spec(spec: str) -> None:
    with pytest.raises(SpecError, match=r"a key must be train\.KEY, args\.NAME or env\.NAME"):
        render("slurm", spec, ['sweep={"": [null], "train.": 5, "x y": [null, 1]}'])


OWN = "name: job\nnodes: 2\nprocs_per_node: 1\ndevice: cpu\nimage: a/b:1\n"


def test_sweep_of_arguments_needs_no_wrapper(own_cluster: Cluster, tmp_path: Path) -> None:
    rates = ["0.10", "1e-3"]  # as the spec writes them
    file = tmp_path / "job.yaml"
    file.write_text(
        f"{OWN}command: [mine.py, --lr=0.10, --lr=5]\nsweep: {{args.lr: [0.10, 1e-3], args.no-decay: [true]}}\n"
    )
    script = render("slurm", str(file), ["slurm.array_limit=1"])
    assert directives(script)["array"] == "0-1%1"
    for number, rate in enumerate(rates):
        code, out = own_cluster.run(script, SLURM_ARRAY_JOB_ID="9", SLURM_ARRAY_TASK_ID=str(number))
        assert code == 0, out
        call, *_ = own_cluster.calls().values()
        assert call.argv[-5:] == ["mine.py", "--lr=0.10", "--lr=5", "--no-decay=true", f"--lr={rate}"]
    for number, document in enumerate(d for d in documents(render("jobset", str(file))) if d["kind"] == "JobSet"):
        assert f"--lr={rates[number]}" in str(document)


def test_swept_numbers_of_an_option_with_several_lines_are_as_written(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"{OWN}command: [mine.py]\n")
    script = render("slurm", str(file), ["sweep=\n  args.lr:\n  - 0.10\r\n  - 0.20"])
    assert re.findall(r"set -- --lr=(.*) ;;", script) == ["0.10", "0.20"]
