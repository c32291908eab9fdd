"""`render.py from`: a spec from a script or manifest that renders the same job, and names all that it leaves out."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobspec import targets
from jobspec.artifact import load
from jobspec.plan import Plan
from jobspec.problems import SpecError
from jobspec.spec.sbatch_options import FLAGS, OPTIONS
from migrate import starter
from migrate.manifest import read_manifests
from migrate.program import LAUNCHER_FLAGS
from migrate.script import read_script

ROOT = Path(__file__).parents[2]
ARTIFACTS = [*sorted((ROOT / "slurm").glob("*.sh")), *sorted((ROOT / "k8s").glob("*.*job*.yaml"))]


def run(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "render.py"), *words]
    return subprocess.run(command, cwd=ROOT, input=stdin, capture_output=True, text=True, timeout=60)


def spec_of(text: str, folder: Path, suffix: str = ".sh") -> str:
    """Return the spec without lint's findings, which take a second."""
    draft = read_script(text, "source") if suffix == ".sh" else read_manifests({"source": text})
    draft.make_valid()
    return draft.texts(with_site=False)[0]


def plan_of(spec: str, folder: Path, target: str) -> Plan:
    file = folder / "spec.yaml"
    file.write_text(spec)
    return load(targets.load(target), str(file))


def size_of(plan: Plan) -> tuple[object, ...]:
    job = plan.job
    return job.nodes, job.procs_per_node, job.gpus, job.gpu, job.time_limit, plan.program, job.device


@pytest.mark.parametrize("file", ARTIFACTS, ids=lambda file: file.name)
def test_spec_from_own_artifact_renders_the_same_job(file: Path, tmp_path: Path) -> None:
    target = "slurm" if file.suffix == ".sh" else file.name.split(".")[1]
    command = re.search(r"# Rendered by `render.py \S+ (\S+)((?: --set \S+)*)`", file.read_text())
    assert command
    before = load(targets.load(target), str(ROOT / "jobs" / command[1]), command[2].split(" --set ")[1:])
    assert size_of(plan_of(starter([str(file)]).job, tmp_path, target)) == size_of(before)


SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=Train_1
#SBATCH --nodes=2
#SBATCH --gres=gpu:a100:8
#SBATCH --time=1-00:00:00
#SBATCH -p gpu
module load cuda/12.4
export NCCL_DEBUG=INFO
export SEED=1
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:29500 train.py --lr 0.1
"""


def test_from_and_render_are_one_pipe() -> None:
    spec = run("from", "-", stdin=SCRIPT)
    assert spec.returncode == 0, spec.stderr
    done = run("slurm", "-", stdin=spec.stdout)
    assert done.returncode == 0, done.stderr
    for line in ("--nodes=2", "--gpus-per-node=a100:8", "--time=1-00:00:00", "--partition=gpu", "--job-name=train-1"):
        assert f"#SBATCH {line}\n" in done.stdout
    for text in ("torchrun --nproc-per-node=8", "module load cuda/12.4", "NCCL_DEBUG=INFO"):
        assert text in done.stdout


def test_site_has_what_is_of_the_cluster_and_both_render_the_same(tmp_path: Path) -> None:
    job, site, old = (str(tmp_path / name) for name in ("job.yaml", "site.yaml", "old.sh"))
    Path(old).write_text(SCRIPT)
    assert run("from", old, "-o", job, "--site", site).returncode == 0
    keys = [line.split(":")[0] for line in Path(site).read_text().splitlines() if line[0] not in " #"]
    assert keys == ["gpu", "setup", "env", "slurm"]
    assert "SEED" in Path(job).read_text()
    assert "SEED" not in Path(site).read_text()
    one = run("slurm", "-", stdin=run("from", old).stdout)
    assert run("slurm", job, site).stdout.replace("job.yaml site.yaml", "-") == one.stdout
    Path(site).write_text("mine\n")
    assert run("from", old, "--site", site).returncode == 1


# What stands in a script or manifest, and what must stand in the spec.
SAID = [
    ("#SBATCH --nodes=1-3\nsrun torchrun --nproc_per_node 2 a.py", "nodes: {min: 1, max: 3}"),
    ("#SBATCH --ntasks=16\n#SBATCH --ntasks-per-node=8\nsrun python a.py", "nodes: 2  # line 2, line 3"),
    ("#SBATCH -N 2\n#SBATCH --ntasks-per-node=4\nsrun python -u a.py", "procs_per_node: 4  # line 3"),
    ("#SBATCH -N 2\nsrun -l python a.py", "label: true  # line 3"),
    ("#SBATCH -c 4\n#SBATCH --ntasks-per-node=2\nsrun python a.py", "cpus: 8"),
    ("#SBATCH --mem=200G\npython a.py", "memory: 200GiB"),
    ("#SBATCH --mem=0\npython a.py", "mem: 0"),
    ("#SBATCH -t 90\npython a.py", "time_limit: 1h30m"),
    ("#SBATCH --signal=B:USR1@90\n#SBATCH --requeue\npython a.py", "grace: 1m30s"),
    ("#SBATCH --signal=USR1@90\npython a.py", "max_requeues: 0"),
    ("#SBATCH --requeue\n#SBATCH --signal=USR1@90\npython a.py", "grace: 1m30s  # line 3, line 2"),
    ("#SBATCH -N 2\nsrun --gres=gpu:4 -n 8 python a.py", "procs_per_node: 4"),
    ("#SBATCH --export=ALL,A=1\npython a.py", 'A: "1"  # line 2'),
    ("#SBATCH --nodesx=2\npython a.py", "# not taken, line 2: --nodesx=2: sbatch does not read it"),
    ("#SBATCH -N 1\npython a.py\n#SBATCH --time=5", "# not taken, line 4: --time=5: sbatch does not read it"),
    ("#SBATCH -N 1\npython a.py $1", "not known: $1"),
    ("#SBATCH -N 1\npython a.py --out $SCRATCH/x", 'exec python3 a.py --out \\"$SCRATCH\\"/x'),
    ("#SBATCH -N 1\nX=$(date +%s)\npython a.py --out run-$X", "export X  # a word of the command"),
    ("#SBATCH -N 1\ncd /code\npython a.py", "workdir: /code  # line 3"),
    ("#SBATCH -N 1\nif true; then\n  cp a b\nfi\npython a.py", '"if true; then cp a b; fi"  # lines 3-5'),
    ("#SBATCH -N 1\ncat > x <<EOF\na\nEOF\nmake x <<EOF\nb\nEOF\npython a.py", "not one line of bash"),
    ("#SBATCH -N 1\npython a.py\ncp out /home", "epilogue:\n    - cp out /home  # line 4"),
    (
        "#SBATCH -N 1\nsrun apptainer exec --nv -B /d:/data:ro x.sif python a.py",
        "{source: /d, path: /data, read_only: true}",
    ),
    ("#SBATCH -N 1\nsrun --container-image=a/b:1 --container-mounts=/x:/y python a.py", "runtime: pyxis"),
    ("#SBATCH -N 1\nsrun bash -c 'source v/bin/activate; torchrun --nproc_per_node=2 a.py'", "source v/bin/activate"),
    ("#SBATCH -N 1\nsrun timeout 5 python a.py", "# not taken, line 3: timeout 5: stands in front of the program"),
    ("#SBATCH -N 1\nsrun apptainer exec x.sif numactl -N 1 python a.py", "# not taken, line 3: numactl -N 1"),
    ("#SBATCH -N 1\nsrun uv run --frozen python a.py", "# not taken, line 3: uv run --frozen"),
    ("#SBATCH -N 1\nsrun ./run.sh a", 'command: ["./run.sh", a]'),
    ("#SBATCH -N 2\naccelerate launch --config_file c.yaml a.py", "# not taken, line 3: --config-file c.yaml"),
    ("#SBATCH -N 2\ntorchrun --nproc_per_node=2 a.py", "not only on the first"),
]


@pytest.mark.parametrize(("source", "said"), SAID, ids=[source.replace("\n", " ; ") for source, _ in SAID])
def test_piece_of_a_script_is_in_the_spec_or_named(source: str, said: str, tmp_path: Path) -> None:
    spec = spec_of(f"#!/bin/bash\n{source}\n", tmp_path)
    assert said in spec
    plan_of(spec, tmp_path, "slurm")


POD = """\
apiVersion: batch/v1
kind: Job
metadata: {name: a, labels: {team: x}}
spec:
  parallelism: 2
  completionMode: Indexed
  template:
    spec:
      PIECE
      containers:
        - name: main
          image: a/b:1
          command: [torchrun, --nproc-per-node=2, a.py]
          INSIDE
          resources: {limits: {nvidia.com/gpu: 2, memory: 700G}, requests: {memory: 1Gi}}
"""
SHM = "volumeMounts: [{name: d, mountPath: /dev/shm}]"
MOUNT = "volumeMounts: [{name: d, mountPath: /d}]"
FIELDS = [
    ("hostNetwork: true", "", "host_network: true  # line 9"),
    ("hostNetwork: true", "", "security: privileged"),
    ("affinity: {podAffinity: {}}", "", "affinity: {podAffinity: {}}"),
    ("nodeName: n1", "", "# not taken, line 9: nodeName: no key for it"),
    ("tolerations: [{key: a, effect: NoExecute, tolerationSeconds: 5}]", "", "{key: a, effect: NoExecute, seconds: 5}"),
    ("volumes: [{name: d, persistentVolumeClaim: {claimName: c}}]", MOUNT, "{claim: c, path: /d}"),
    ("volumes: [{name: d, nfs: {path: /x, server: s}}]", MOUNT, MOUNT),
    ("volumes: [{name: d, emptyDir: {medium: Memory, sizeLimit: 2Gi}}]", SHM, "shm: 2GiB"),
    ("", "env: [{name: A, value: b}]", "A: b  # line 14"),
    ("", "env: [{name: HF_TOKEN, valueFrom: {secretKeyRef: {name: s, key: k}}}]", "{HF_TOKEN: {secret: s, key: k}}"),
    ("", "env: [{name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]", "fieldPath: status.podIP"),
    ("", "tty: true", "tty: true"),
    ("", "securityContext: {runAsUser: 5}", "run_as_user: 5"),
    ("", "", "memory: 667572MiB  # line 15: 700G, rounded to whole MiB"),
    ("", "", 'resources: {requests: {memory: "1Gi"}}'),
    ("", "", "team: x"),
]  # fmt: skip


@pytest.mark.parametrize(("piece", "inside", "said"), FIELDS, ids=[f"{a}{b}-{c}" for a, b, c in FIELDS])
def test_field_of_a_manifest_is_in_the_spec_or_named(piece: str, inside: str, said: str, tmp_path: Path) -> None:
    spec = spec_of(POD.replace("PIECE", piece).replace("INSIDE", inside), tmp_path, ".yaml")
    assert said in spec
    plan = plan_of(spec, tmp_path, "indexedjob")
    assert (plan.job.nodes.max, plan.job.procs_per_node, plan.job.gpus) == (2, 2, 2)


options = st.lists(st.sampled_from(sorted(OPTIONS - {"help", "usage", "version", "wrap", "test-only"})), unique=True)
flags = st.lists(st.sampled_from(sorted({*LAUNCHER_FLAGS, "role", "log-dir", "redirects"})), unique=True)
lines = st.lists(st.sampled_from(["ulimit -n 9", "cp a b", "echo x", "export A=1", "B=2", "for i in 1; do\n ls\ndone"]))


@settings(deadline=None, max_examples=60)
@given(options, flags, lines, lines)
def test_each_line_of_a_script_is_in_the_spec_or_named(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], switches: list[str], before: list[str], after: list[str]
) -> None:
    plain = {"m", "module", "no-python", "standalone", "use-env", "multi-gpu", "same-network", "no-ssh", "force-multi"}
    head = [f"#SBATCH --{name}{'' if name in FLAGS else '=2'}" for name in names]
    words = [f"--{each}" if each in plain else f"--{each}=2" for each in switches]
    text = "\n".join(["#!/bin/bash", *head, *before, f"srun torchrun {' '.join(words)} a.py", *after, ""])
    spec = spec_of(text, tmp_path_factory.getbasetemp())
    named = set()
    for first, last in re.findall(r"lines? (\d+)(?:-(\d+))?", spec):
        named |= set(range(int(first), int(last or first) + 1))
    assert set(range(2, text.count("\n") + 1)) - named == set()
    for switch in switches:
        assert f"--{switch}" in spec or switch in ("nproc-per-node", "max-restarts", "rdzv-conf")


SECRET = "hf_0123456789abcdefXYZab"
HOLDERS = [
    f"export WANDB_API_KEY={SECRET}\npython a.py",
    f"WANDB_API_KEY={SECRET}\npython a.py",
    f"python a.py --api-key {SECRET}",
    f"export WANDB_API_KEY=${{WANDB_API_KEY:-{SECRET}}}\npython a.py",
    f"srun bash -c 'export WANDB_API_KEY={SECRET}; python a.py'",
    f"export WANDB_API_KEY=other && wandb login {SECRET}\npython a.py",
    f"#SBATCH --export=ALL,WANDB_API_KEY={SECRET}\npython a.py",
]


@pytest.mark.parametrize("holder", HOLDERS)
def test_value_of_a_secret_is_never_printed(holder: str, tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(f"#!/bin/bash\n#SBATCH -N 1\n{holder}\n")
    done = run("from", str(tmp_path / "a.sh"))
    assert done.returncode == 0
    assert SECRET not in done.stdout + done.stderr
    assert re.search("- (?:WANDB_)?API_KEY", done.stdout) or "login" in holder


def test_value_of_a_secret_in_a_manifest_is_never_printed(tmp_path: Path) -> None:
    inside = f"env: [{{name: HF_TOKEN, value: {SECRET}}}]"
    spec = spec_of(POD.replace("PIECE", "").replace("INSIDE", inside), tmp_path, ".yaml")
    assert SECRET not in spec
    assert "- HF_TOKEN" in spec


HOSTILE = {
    "binary": b"\x7fELF\x00\x01\xff",
    "zeros": b"#!/bin/bash\n\0\0",
    "10 MB": b"#!/bin/bash\n" + b"echo x\n" * 1_500_000,
    "empty": b" \n",
    "no job": b"apiVersion: v1\nkind: Pod\n",
    "not YAML": b"kind: Job\n: [",
}
ODD = {
    "unclosed quotes": b"#!/bin/bash\n#SBATCH -N 1\nsrun python 'a.py\n",
    "deep": b"#!/bin/bash\n" + b"(" * 3000 + b"python a.py" + b")" * 3000,
    "deep YAML": b"kind: Job\na: " + b"[" * 3000,
    "deep field": b"kind: Job\nspec: " + b"{a: " * 200 + b"1" + b"}" * 200,
    "cycle": b"kind: Job\nspec: &a {template: *a}\n",
    "escapes": b"#!/bin/bash\n#SBATCH --comment=\x1b[31m\nsrun python a.py\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_gets_a_sentence_and_code_4(name: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(HOSTILE[name])
    done = run("from", str(tmp_path / "x"))
    assert done.returncode == 4
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) < 8
    assert done.stdout == ""


@pytest.mark.parametrize("name", ODD)
def test_odd_file_gets_a_spec_or_a_sentence(name: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(ODD[name])
    done = run("from", str(tmp_path / "x"))
    assert done.returncode in (0, 4)
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_two_scripts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(SCRIPT)
    with pytest.raises(SpecError):
        starter([str(tmp_path / "a.sh"), str(tmp_path / "a.sh")])
