"""What a spec probably does not mean is said, and rendered all the same."""

from collections.abc import Callable
from pathlib import Path

import pytest

from jobspec.artifact import render
from tests.slurm import TWO_NODES

NotesOf = Callable[..., list[str]]
ALL = sorted((Path(__file__).parents[3] / "jobs").glob("*.yaml"))


@pytest.fixture
def notes_of(tmp_path: Path) -> NotesOf:
    (tmp_path / "job.yaml").write_text(TWO_NODES)

    def rendered(target: str, *settings: str) -> list[str]:
        notes: list[str] = []
        assert render(target, str(tmp_path / "job.yaml"), settings, notes)
        return notes

    return rendered


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("command=[train.py, '“a”']", "command[1] contains “"),
        ("command=[train.py, –lr, x]", "command[1] contains –"),
        ("setup=['export A=‘b’']", "setup[0] contains ‘"),
        ("command=[train]", 'command begins with "train", not a .py file'),
        ("env={HF_TOKEN: hf_abc}", "env.HF_TOKEN looks like a secret, and its value is in the output"),
        ("env={DATA: '$HOME/data'}", "env.DATA contains $HOME, which no shell replaces; write export DATA=… in setup"),
        ("env={NAME: 'a-${USER}'}", "env.NAME contains ${USER}, which no shell replaces"),
        ("sweep={env.A: [/a, $HOME/b, $HOME/c]}", "env.A contains $HOME, which no shell replaces"),
        ("env={CACHE: ~/cache}", "env.CACHE contains ~, which no shell replaces"),
        (
            "env={PATH: '/opt/x/bin:$PATH'}",
            "env.PATH contains $PATH, which no shell replaces; write export PATH=… in setup",
        ),
        ("env={CPATH: '/a:${CPATH}'}", "env.CPATH contains ${CPATH}, which no shell replaces"),
        *(
            (f"env={{A: '/a:${name}'}}", f"env.A contains ${name}, which no shell replaces")
            for name in ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
        ),
        ("command=[mine.py, -c, $HOME/a]", "command[2] contains $HOME, which no shell replaces"),
        ("command=[mine.py, bash, -x, $HOME/a]", "command[3] contains $HOME, which no shell replaces"),
        (
            "command=[mine.py, '--id=$SLURM_JOB_ID$TMPDIR']",
            "command[1] contains $SLURM_JOB_ID, which no shell replaces",
        ),
        ("command=[mine.py, ~/data]", "command[1] contains ~, which no shell replaces"),
        ("files=[lib.py]", "files does not list mine.py, the script in command"),
        ("slurm.options={mail-tpye: END}", "no option mail-tpye, unless a plugin adds it; did you mean mail-type?"),
        ("setup=['export HF_TOKEN=hf_abc']", "setup[0] sets HF_TOKEN, which looks like a secret; secrets: [HF_TOKEN]"),
        ("setup=['true; exit']", "setup[0] contains exit, which ends the job before its processes start"),
        ("setup=['trap \"rm x\" EXIT']", "setup[0] sets a trap for EXIT, which never runs"),
        ("setup=[conda activate x]", "setup[0]: conda activate works only in a shell with conda's hook; write eval"),
        ("env={CUDA_VISIBLE_DEVICES: '0'}", "env.CUDA_VISIBLE_DEVICES overrides the GPUs"),
        ("image=registry.example/team/train:1", 'image "registry.example/team/train:1" is a placeholder'),
        (b"setup=['echo\\u00a0a']".decode("unicode-escape"), "setup[0] contains U+00A0, a no-break space"),
        ("preemption={}", 'so command must save on SIGTERM and resume by itself. In Lightning: fit(ckpt_path="last")'),
        ("slurm.options={of-our-plugin: 1}", "no option of-our-plugin, unless a plugin adds it"),
    ],
)
def test_doubt_is_said_once_and_without_a_secret(
    keys: str, said: str, notes_of: NotesOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lib.py").touch()
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
    assert note == "mine.py does not travel with the job: the image or a mount has it, or pods need files: [mine.py]"
    assert notes_of("slurm") == []


def test_an_empty_preemption_is_doubted(notes_of: NotesOf, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(f"{TWO_NODES}preemption:\n")
    assert notes_of("slurm") == ["preemption is empty, as if it were not there; preemption: {} takes the defaults"]


@pytest.mark.parametrize(
    "start", ["bash, -lc", "sh, -c", "/bin/dash, -c", "zsh, -ic", "ksh, -e, -c", "env, bash, -xec"]
)
def test_variable_that_a_shell_of_the_command_replaces_raises_no_doubt(start: str, notes_of: NotesOf) -> None:
    assert notes_of("slurm", "no_python=true", f"command=[{start}, 'exec $HOME/mine']") == []
    swept = ["no_python=true", "sweep={args.lr: [1, 2], args.x: [0]}"]
    assert notes_of("slurm", f"command=[{start}, 'a \"$@\"', b]", *swept) == []
    (note,) = notes_of("slurm", f"command=[{start}, python a.py]", *swept)
    assert note == "sweep: the shell takes args.lr as $0, its own name; write env.NAME instead"


@pytest.mark.parametrize("key", ["data_root", "run_dir", "checkpoint_dir", "resume", "export"])
def test_variable_in_a_path_of_train_is_doubted(key: str, notes_of: NotesOf) -> None:
    folder = "" if key == "checkpoint_dir" else "checkpoint_dir: /c, "
    notes = notes_of("slurm", "command=", f"train={{{folder}{key}: '$SCRATCH/x'}}")
    assert notes == [f"train.{key} contains $SCRATCH, which no shell replaces; write the path itself"]


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
        "command=[-m, pkg.Module, a–b]",
        "image=/images/Train.sif",
        "image=ghcr.io:5000/team/train:V1",
        "setup=['[[ -d /a ]] || exit 1', 'eval \"$(conda shell.bash hook)\"', conda activate x, 'export HF_TOKEN=$A']",
        "env={PRICE: '$5', FORMAT: '$FOO ${FOO} $HOMES $FORMATS $$ $(HOME)', BACKUP: 'a~/b', USERS: 'a$USER_NAME'}",
        "command=[mine.py, '--run-dir=~/runs', '$x', '~']",
        "env={TOKENIZER: a, EOS_TOKEN: b, HF_TOKEN: ''}",
        "slurm.options={container-writable: true, mail-type: END}",
        "preemption={progress: /shared/last.ckpt}",
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


@pytest.mark.parametrize("job", ALL, ids=lambda job: job.stem)
def test_examples_raise_no_doubt(job: Path) -> None:
    notes: list[str] = []
    render("slurm", str(job), (), notes)
    assert all("is a placeholder" in note for note in notes)
