"""What a spec probably does not mean is said, and rendered all the same."""

from collections.abc import Callable
from pathlib import Path

import pytest

from jobspec.artifact import render
from tests.slurm import TWO_NODES

NotesOf = Callable[..., list[str]]
ALL = sorted((Path(__file__).parents[3] / "jobs").glob("*.yaml"))


_TRAIN = ("command=", "train={model: mlp, dataset: synthetic}")


@pytest.fixture
def notes_of(tmp_path: Path) -> NotesOf:
    (tmp_path / "job.yaml").write_text(f"{TWO_NODES}resources: {{cpus: 2}}\n")

    def rendered(target: str, *settings: str) -> list[str]:
        notes: list[str] = []
        assert render(target, str(tmp_path / "job.yaml"), settings, notes)
        return notes

    return rendered


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("env={HF_TOKEN: hf_abc}", "env.HF_TOKEN looks like a secret, and its value is in the output"),
        ("env={DATA: '$HOME/data'}", "env.DATA contains $HOME, which no shell replaces"),
        ("sweep={env.A: [/a, '${USER}/b', '${USER}/c']}", "env.A contains ${USER}, which no shell replaces"),
        ("env={CACHE: ~/cache}", "env.CACHE contains ~, which no shell replaces"),
        ("command=[mine.py, '--id=$SLURM_JOB_ID']", "command[1] contains $SLURM_JOB_ID, which no shell replaces"),
        ("setup=['export HF_TOKEN=hf_abc']", "setup[0] sets HF_TOKEN, which looks like a secret; secrets: [HF_TOKEN]"),
        ("env={CUDA_VISIBLE_DEVICES: '0'}", "env.CUDA_VISIBLE_DEVICES overrides the GPUs"),
    ],
)
def test_doubt_is_said_once_and_without_a_secret(keys: str, said: str, notes_of: NotesOf) -> None:
    (note,) = notes_of("slurm", keys)
    assert said in note
    assert "hf_abc" not in note


def test_a_script_that_lies_here_and_does_not_travel_to_the_pods_is_named(
    notes_of: NotesOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert notes_of("jobset", "image=a/b:1") == []
    (tmp_path / "mine.py").touch()
    (note,) = notes_of("jobset", "image=a/b:1")
    assert note == "mine.py does not travel with the job: list it in files, or have it in the image or a mount"
    assert notes_of("jobset", "image=a/b:1", "files=[mine.py]") == []
    assert notes_of("slurm") == []


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (("command=[mine.py, --to, /tmp/x]", "preemption={}"), "command[2] is /tmp/x"),
        (("command=[mine.py, --to, /tmp/x]",), None),  # may be data
        ((*_TRAIN, "train.checkpoint_dir=/dev/shm/x"), "train.checkpoint_dir is /dev/shm/x"),
        ((*_TRAIN, "train.checkpoint_dir=/dev/shm/x", "nodes=1"), None),
        ((*_TRAIN, "train.checkpoint_dir=/tmp/x", "mounts=[{source: /lustre, path: /tmp}]"), None),
    ],
)
def test_checkpoints_that_only_one_node_has_are_doubted(
    keys: tuple[str, ...], said: str | None, notes_of: NotesOf
) -> None:
    notes = [note for note in notes_of("slurm", *keys) if "a folder of each node" in note]
    assert len(notes) == (said is not None) and (said or "") in "".join(notes)


def test_an_empty_preemption_is_doubted(notes_of: NotesOf, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(f"{TWO_NODES}resources: {{cpus: 2}}\npreemption:\n")
    assert notes_of("slurm") == ["preemption is empty, as if it were not there; preemption: {} takes the defaults"]


@pytest.mark.parametrize("key", ["data_root", "run_dir"])
def test_variable_in_a_path_of_train_is_doubted(key: str, notes_of: NotesOf) -> None:
    notes = notes_of("slurm", "command=", f"train={{{key}: '$SCRATCH/x'}}")
    assert notes == [f"train.{key} contains $SCRATCH, which no shell replaces; write the value, or export it in setup"]


@pytest.mark.parametrize("keys", ["max_restarts=1", "nodes={min: 1, max: 2}"])
def test_restart_that_would_refuse_its_own_checkpoints_or_has_none_is_doubted(keys: str, notes_of: NotesOf) -> None:
    trains = [keys, "command=", "train={checkpoint_dir: /checkpoints}"]
    said = "train.resume is never, so a restart finds checkpoints and refuses to run; write resume: auto"
    assert notes_of("torchrun", *trains) == [said]
    assert notes_of("torchrun", *trains, "train.resume=auto") == []
    none = "train.checkpoint_dir is not given, so each restart loses all steps; give it, and resume: auto"
    assert notes_of("torchrun", keys, "command=", "train={}") == [none]
    assert notes_of("torchrun", keys, "command=", "train={evaluate_only: true, resume: /step-00000003}") == []


@pytest.mark.parametrize(
    "keys",
    [
        "setup=['[[ -d /a ]] || exit 1', 'export HF_TOKEN=$A']",
        "env={PRICE: '$5', FORMAT: '$FOO ${FOO} $HOMES $FORMATS $$ $(HOME)', BACKUP: 'a~/b', USERS: 'a$USER_NAME'}",
        "command=[mine.py, '--run-dir=~/runs', '$x', '~']",
        "env={TOKENIZER: a, EOS_TOKEN: b, HF_TOKEN: ''}",
    ],
)
def test_what_is_meant_so_raises_no_doubt(keys: str, notes_of: NotesOf) -> None:
    assert notes_of("slurm", keys) == []


@pytest.mark.parametrize(
    ("path", "kept"),
    [("/runs/one", True), ("/runs", True), ("/runs2", False), ("~/runs", False), ("runs", False), ("/cache/a", False)],
)
def test_a_folder_that_ends_with_the_container_is_doubted(path: str, kept: bool, notes_of: NotesOf) -> None:
    mounts = "mounts=[{claim: runs, source: /home/me, path: /runs}, {scratch: 1GiB, path: /cache}]"
    train = ["command=", "image=a/b:1", mounts, f"train={{checkpoint_dir: {path}}}"]
    end = "which is lost with the container: mount a source or claim there"
    lost = [f"train.checkpoint_dir is {path}, {end}"]
    for target, settings, in_container in [
        ("torchrun", (), False),
        ("slurm", (), False),
        ("slurm", ("slurm.runtime=apptainer",), False),  # which shows the home and /tmp of the node
        ("slurm", ("slurm.runtime=docker",), True),
        ("compose", (), True),
        ("jobset", (), True),
    ]:
        assert notes_of(target, *train, *settings) == (lost if in_container and not kept else [])
    assert notes_of("compose", *train, "workdir=/runs", "train.checkpoint_dir=ck") == []
    data = ["train.checkpoint_dir=/runs/a", "train.dataset=tokens", "train.model=gpt", f"train.data_root={path}"]
    ours = f"train.data_root is {path}, which is inside the container: mount a source or claim there"
    said = [] if kept else [f"{ours}, unless the image has the data"]
    assert (notes_of("compose", *train, *data), notes_of("torchrun", *train, *data)) == (said, [])
    said = [] if kept else [f"{ours}, or each start fetches the data"]
    assert notes_of("compose", *train, *data, "train.dataset=mnist", "train.model=mlp") == said


def test_slurm_is_asked_how_many_cpus_the_processes_of_a_task_get(notes_of: NotesOf) -> None:
    (note,) = notes_of("slurm", "resources.cpus=")
    assert note.startswith("resources.cpus is not given, so the site decides how many CPUs the 2 processes of a node")
    for enough in ("slurm.options={exclusive: true}", "procs_per_node=1", "slurm.launcher=srun"):
        assert notes_of("slurm", "resources.cpus=", enough) == []


@pytest.mark.parametrize("job", ALL, ids=lambda job: job.stem)
def test_examples_raise_no_doubt(job: Path) -> None:
    notes: list[str] = []
    render("slurm", str(job), ["resources.cpus=8"], notes)
    assert notes == []
