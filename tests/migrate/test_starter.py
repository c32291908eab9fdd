"""`render.py from`: a spec from a script or manifest that renders the same job, and names all that it leaves out."""

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
from jobspec.spec.sbatch_options import FLAGS, OPTIONS
from migrate import starter
from migrate.manifest import read_manifests
from migrate.program import LAUNCHER_FLAGS
from migrate.script import read_script

ROOT = Path(__file__).parents[2]
ARTIFACTS = [*sorted((ROOT / "slurm").glob("*.sh")), *sorted((ROOT / "k8s").glob("*.*job*.yaml"))]
SECRET = "hf_0123456789abcdefXYZab"


def run(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "render.py"), *words]
    return subprocess.run(command, cwd=ROOT, input=stdin, capture_output=True, text=True, timeout=60)


def spec_of(text: str) -> str:
    draft = read_script(text, "source") if text.startswith("#!") else read_manifests({"source": text})
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
    assert size_of(plan_of(starter([str(file)])[0], tmp_path, target)) == size_of(before)


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
    assert run("from", old, old).returncode == 4  # two scripts
    assert run("from", f"{old}.gone").returncode == 4
    done = run("from", old, "--site", old)
    assert done.returncode == 1 and "--site must not replace it" in done.stderr


# What stands in a script below `#SBATCH -N 2`, and what must stand in the spec.
SAID = [
    ("LR=${1:-3}\nsrun python train.py --lr $LR", "${LR:?is not known"),
    ("#SBATCH --nodes=1-3\nsrun torchrun --nproc_per_node 2 a.py", 'nodes: {"min": 1, "max": 3}  # line 2, line 3'),
    ("#SBATCH --gres=gpu:4,tmpdisk:100\nsrun python a.py", "gpus_per_node: 4  # line 3\ncommand"),
    ("#SBATCH --ntasks-per-node=4\nsrun python -u a.py", "procs_per_node: 4  # line 3"),
    ("srun --nodelist=$X python a.py", "# not taken, line 3: srun --nodelist=$X: of the step alone"),
    ("A=1\nsrun bash -c 'export A=2; python a.py'", '"export A=2"  # line 4'),
    ("mkdir x\nsrun bash -c 'A=$SLURM_LOCALID; python a.py $A'", 'setup:\n  - "A=$SLURM_LOCALID"  # line 4\n  - "ex'),
    ("#SBATCH hetjob\n#SBATCH -N 1\nsrun python a.py", "# not taken, line 3: #SBATCH hetjob: a heterogeneous job"),
    ("srun --het-group=1 python a.py", "# not taken, line 3: srun --het-group=1: of a heterogeneous job"),
    ("timeout 23h srun python a.py", "# not taken, line 3: timeout 23h srun: stands in front of srun"),
    ("srun -N 1 torchrun --nproc_per_node=2 a.py", "# not taken, line 3: srun --nodes=1: of the step alone"),
    ("srun torchrun --nnodes=1 --nproc_per_node=2 a.py", "# not taken, line 3: --nnodes 1: not the number of nodes"),
    ("#SBATCH --wait\nsrun python a.py", "    wait: true  # line 3"),
    ("f() { srun python a.py $1; }\nf $(date)", "# not taken, line 4: f $(date): follows the program"),
    ("cp a b", "# not taken, line 3: cp a b: no line of the script starts a program"),
    ("srun -l python a.py", "    label: true  # line 3"),
    ("#SBATCH --gpu-bind=closest\nsrun python a.py", 'srun_options:\n    gpu-bind: "closest"  # line 3'),
    ("#SBATCH -t 90\npython a.py", 'time_limit: "90m"'),
    ("#SBATCH --signal=B:USR1@90\npython a.py", "# not taken, line 3: slurm.options.signal: B:USR1@90: "),
    ("#SBATCH --gres=gpu:$G\npython a.py", "# not taken, line 3: gpus_per_node: gpu:$G"),
    ("srun --gres=gpu:4 -n 8 python a.py", "procs_per_node: 4"),
    ("python a.py\n#SBATCH --time=5", "# not taken, line 4: --time=5: sbatch does not read it"),
    ("python a.py $1", "not known: $1"),
    ("python a.py --out $SCRATCH/x", 'exec python3 a.py --out \\"$SCRATCH\\"/x'),
    ('python a.py "$A $B"', 'a.py \\"$A\\"\' \'\\"$B\\"'),
    ("X=$(date +%s)\npython a.py --out run-$X", 'export X"  # a word of the command'),
    ("if a; then B=--b; fi\ncase $C in c) D=--d;; esac\npython a.py $B $D", 'exec python3 a.py $B $D"]'),
    ("[ -f a ] && B=--b\npython a.py $B", '  - "[ -f a ] && B=--b"  # line 3\n    - "export B"'),
    ("if a; then A=(x); else A=(y); fi\npython a.py ${A[@]}", "not known: ${A[@]}"),
    ("cp a b && module load c\npython a.py", '  - "cp a b"  # line 3: ends the job if it fails\n    - "module'),
    ("set -eu\ncp a b\npython a.py", '"cp a b"  # line 4\n'),
    ("set -x; set -o pipefail -e\ncp a b\npython a.py", '"cp a b"  # line 4\n'),
    ("module purge 2>/dev/null\npython a.py", '"module purge 2>/dev/null || true"  # line 3: may fail, as in'),
    ("./monitor.sh >x &\npython a.py", "# not taken, line 3: ./monitor.sh >x: runs in the background"),
    ("cd x >/dev/null && rm y\npython a.py", '"cd x >/dev/null"  # line 3: ends the job if it fails'),
    ("if true; then\n  cp a b\nfi\npython a.py", '"if true; then cp a b; fi"  # lines 3-5'),
    ("cat > x <<EOF\na\nEOF\npython a.py", "# not taken, lines 3-5: cat > x <<EOF a EOF: not one line"),
    ("python a.py\ncp out /home", 'epilogue:\n    - "cp out /home"  # line 4'),
    ("cd x\npython a.py\nrm -r y", 'prologue:\n    - "cd x"'),
    ("R=/a\npython a.py\nrm -r $R/x", 'prologue:\n    - "R=/a"'),
    ("R=$1\npython a.py\nrm -r $R/x", "# not taken, line 5: rm -r $R/x: R would be empty"),
    ("R=$SLURM_NTASKS\nmkdir $R\npython a.py", "# not taken, line 4: mkdir $R: R would be empty"),
    ("python a.py && touch x", "touch x: runs after a success only"),
    ("set -e\npython a.py\ntouch x", "touch x: runs after a success only"),
    ("python a.py\nif [ $? = 0 ]; then touch x; fi", "fi: runs after a success only"),
    ("export R=$RANDOM\npython a.py", 'prologue:\n    - "export R=$RANDOM"'),
    ("set -a\n. x\nset +a\npython a.py", 'setup:\n  - "set -a"  # line 3'),
    ("python -m torch.distributed.launch --nproc_per_node=2 a.py", "# not taken, line 3: --local-rank=N"),
    ("srun torchrun --nnodes=1:2 --nproc_per_node=2 a.py", "--nnodes 1:2: a range is nodes: {min"),
    ("#SBATCH -n 3\nsrun python a.py", "# not taken, line 4: --ntasks=3: not the same number"),
    ("srun apptainer exec --nv x.sif python a.py", 'image: "x.sif"'),
    ("srun apptainer exec --nv x.sif python a.py", "# not taken, line 3: apptainer exec --nv: stands in front of"),
    ("srun bash -c 'source v/bin/activate; torchrun --nproc_per_node=2 a.py'", "source v/bin/activate"),
    ("A=1 srun python a.py | tee x", "# not taken, line 3: A=1 srun python a.py | tee x: stands around the program"),
    ("torchrun --nproc_per_node=2 a.py", "not only on the first"),
]


@pytest.mark.parametrize(("source", "said"), SAID)
def test_piece_of_a_script_is_in_the_spec_or_named(source: str, said: str, tmp_path: Path) -> None:
    spec = spec_of(f"#!/bin/bash\n#SBATCH -N 2\n{source}\n")
    assert said in spec
    plan_of(spec, tmp_path, "slurm")


def test_variables_of_one_line_stand_in_one_order_at_every_run() -> None:
    names = [f"A{number}" for number in range(10)]
    spec = spec_of(f"#!/bin/bash\nexport {' '.join(f'{name}=x' for name in reversed(names))}\nsrun python a.py\n")
    assert re.findall(r"(?m)^  (A\d):", spec) == names


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
    ("terminationGracePeriodSeconds: 600", "", "# not taken, line 9: kubernetes.pod.terminationGracePeriod"),
    ("hostNetwork: true", "", 'security: "privileged"'),
    ("nodeName: n1", "", "# not taken, line 9: kubernetes.pod.nodeName: n1: "),
    ("volumes: [{name: d, persistentVolumeClaim: {claimName: c}}]", MOUNT, '{"claimName": "c"}'),
    ("volumes: [{name: d, secret: {secretName: y, defaultMode: 0400}}]", MOUNT, '"defaultMode": 256'),
    ("volumes: [{name: d, emptyDir: }]", MOUNT, '{"name": "d", "emptyDir": null}'),
    ("volumes: [{name: d, hostPath: {path: /x}}]", MOUNT, '"mountPath": "/d"'),
    ("volumes: [{name: d, emptyDir: {medium: Memory, sizeLimit: 2Gi}}]", SHM, 'shm: "2GiB"'),
    ("", "env: [{name: A, value: b}]", 'A: "b"  # line 14'),
    ("", "env: [{name: HF_TOKEN, valueFrom: {secretKeyRef: {name: s, key: k}}}]", '{"name": "s", "key": "k"}'),
    ("", f"env: [{{name: HF_TOKEN, value: {SECRET}}}]", '- "HF_TOKEN"  # '),
    ("", "env: [{name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]", '"fieldPath": "status.podIP"'),
    ("", "env: [{name: PET_NPROC_PER_NODE, value: '2'}]", "procs_per_node: 2  # line 14"),
    ("", "env: [{name: A, value: $$x$y}]", 'A: "$x$y"  # line 14'),
    ("", "env: [{name: A, value: /d/$(HOSTNAME)}]", 'env: [{"name": "A", "value": "/d/$(HOSTNAME)"}]'),
    ("", "args: [$$x, $$$$y]", 'command: ["a.py", "$x", "$y"]'),
    ("", "", "# not taken, line 15: resources.memory: 700GB"),
    ("", "", '"resources": {"requests": {"memory": "1Gi"}}'),
]


@pytest.mark.parametrize(("piece", "inside", "said"), FIELDS)
def test_field_of_a_manifest_is_in_the_spec_or_named(piece: str, inside: str, said: str, tmp_path: Path) -> None:
    spec = spec_of(POD.replace("PIECE", piece).replace("INSIDE", inside))
    assert said in spec
    assert SECRET not in spec
    plan = plan_of(spec, tmp_path, "indexedjob")
    assert (plan.job.nodes.max, plan.job.procs_per_node, plan.job.gpus) == (2, 2, 2)


SPEC = "{containers: [{name: a, image: a/b:1, command: [torchrun, a.py], resources: {limits: {nvidia.com/gpu: 8}}}]}"
JOB = "{name: n, template: {spec: {backoffLimit: 0, parallelism: 2, template: {spec: SPEC}}}}"
BASH = 'command: [bash, -c, "if b; then N=8; fi; M=$(c); torchrun a.py $N $M"], env: [{name: N, value: a}, {name: M}]'
OBJECTS = [
    ("{kind: PyTorchJob, spec: {pytorchReplicaSpecs: {Master: {template: {spec: SPEC}}}}}", "procs_per_node: 8  # "),
    ("{kind: TrainJob, spec: {trainer: SPEC, runtimeRef: {name: r}}}", "procs_per_node: 8  # "),
    (f"{{kind: JobSet, spec: {{failurePolicy: {{maxRestarts: 3}}, replicatedJobs: [{JOB}]}}}}", "max_restarts: 3  # "),
    (f"{{kind: JobSet, spec: {{replicatedJobs: [{JOB}], failurePolicy: {{maxRestarts: 3}}}}}}", "max_restarts: 3  # "),
    ("{kind: Job, spec: {template: {spec: {containers: [{resources: {requests: {cpu: 8}}}]}}}}", "here also a limit"),
    (
        "{kind: Job, spec: {template: {spec: {containers: [{resources: {limits: {amd.com/gpu: 8}}}]}}}}",
        'gpu_resource: "amd',
    ),
    (f"{{kind: Job, spec: {{template: {{spec: {{containers: [{{{BASH}}}]}}}}}}}}", 'exec python3 a.py $N $M"]'),
    ("{kind: Job, spec: {suspend: true, template: {spec: SPEC}}}", "# not taken, line 1: suspend true: "),
    ("{kind: Job, spec: {completions: 4, parallelism: 2, template: {spec: SPEC}}}", "taken, line 1: completions 4: "),
    ("{kind: Job, spec: {parallelism: 2, backoffLimit: 6, template: {spec: SPEC}}}", "max_restarts: 3  # line 1: "),
]


@pytest.mark.parametrize(("manifest", "said"), OBJECTS)
def test_field_of_an_object_is_in_the_spec_or_named(manifest: str, said: str) -> None:
    trainer = SPEC.removeprefix("{containers: [").removesuffix("]}").replace("resources", "resourcesPerNode")
    assert said in spec_of(manifest.replace("trainer: SPEC", f"trainer: {trainer}").replace("SPEC", SPEC))


@pytest.mark.parametrize("number", ["$N", "2.5"])
def test_number_of_nodes_of_a_runtime_that_is_no_number_is_asked_for(number: str) -> None:
    policy = f"metadata: {{name: r}}, spec: {{mlPolicy: {{numNodes: {number}}}, template: {{spec: {SPEC}}}}}"
    job = "{kind: TrainJob, spec: {runtimeRef: {name: r}, trainer: {command: [torchrun, a.py], image: a/b:1}}}"
    spec = spec_of(f"{{kind: TrainingRuntime, {policy}}}\n---\n{job}\n")
    assert ": the number of pods: not a number" in spec
    assert "nodes: 1  # not known: write the right value here" in spec


PLAIN = {"m", "module", "no-python", "standalone", "use-env", "multi-gpu", "same-network", "no-ssh", "force-multi"}
options = st.lists(st.sampled_from(sorted(OPTIONS - {"help", "usage", "version", "wrap", "test-only"})), unique=True)
flags = st.lists(st.sampled_from(sorted({*LAUNCHER_FLAGS, "role", "log-dir", "rdzv-conf"})), unique=True)
lines = st.lists(st.sampled_from(["ulimit -n 9", "cp a b", "echo x", "export A=1", "B=2", "for i in 1; do\n ls\ndone"]))


@settings(deadline=None, max_examples=60)
@given(options, flags, lines, lines)
def test_each_line_of_a_script_is_in_the_spec_or_named(
    names: list[str], switches: list[str], before: list[str], after: list[str]
) -> None:
    head = [f"#SBATCH --{name}{'' if name in FLAGS else '=2'}" for name in names]
    words = [f"--{each}" if each in PLAIN else f"--{each}=2" for each in switches]
    text = "\n".join(["#!/bin/bash", *head, *before, f"srun torchrun {' '.join(words)} a.py", *after, ""])
    spec, named = spec_of(text), set[int]()
    for first, last in re.findall(r"lines? (\d+)(?:-(\d+))?", spec):
        named |= set(range(int(first), int(last or first) + 1))
    assert set(range(2, text.count("\n") + 1)) - named == set()
    assert [each for each in switches if f"--{each}" not in spec] == []


HOLDERS = [
    f"python a.py --api-key {SECRET}",
    f"export WANDB_API_KEY=${{WANDB_API_KEY:-{SECRET}}}\npython a.py",
    f"srun bash -c 'export WANDB_API_KEY={SECRET}; python a.py'",
    f"export WANDB_API_KEY=other && wandb login {SECRET}\npython a.py",
    f"#SBATCH --export=ALL,WANDB_API_KEY={SECRET}\npython a.py",
    f"echo {'x' * 180} {SECRET}\nexport API_KEY={SECRET}\npython a.py",  # where a long text is cut off
]


@pytest.mark.parametrize("holder", HOLDERS)
def test_value_of_a_secret_is_never_printed(holder: str) -> None:
    spec = spec_of(f"#!/bin/bash\n#SBATCH -N 1\n{holder}\n")
    assert SECRET[:8] not in spec
    assert re.search('- "(?:WANDB_)?API_KEY', spec)


HOSTILE = {
    "binary": b"\x7fELF\x00\x01\xff",
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
    "cycle": b"kind: Job\nspec: &a {template: {spec: {containers: [{name: x}], affinity: *a}}}\n",
    "escapes": b"#!/bin/bash\n#SBATCH --comment=\x1b[31m\nsrun python a.py\n",
}


@pytest.mark.parametrize("name", [*HOSTILE, *ODD])
def test_hostile_file_gets_a_sentence_or_a_spec(name: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes((HOSTILE | ODD)[name])
    done = run("from", str(tmp_path / "x"))
    assert done.returncode in ((4,) if name in HOSTILE else (0, 4))
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert len(done.stderr.splitlines()) < 8
    assert (done.stdout == "") == (done.returncode == 4)
