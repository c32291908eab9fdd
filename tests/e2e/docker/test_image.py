"""What is in the image, and how it is built."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import train
from jobspec.spec.variables import names_secret
from tests.e2e.docker.base import NoBaseError, make_base
from tests.e2e.docker.client import ROOT, Docker

OTHER = "e2e-docker-other"
EMPTY = "e2e-docker-empty"
# What compiles or links, by the names that it is called by.
COMPILERS = re.compile(
    r"(.+-)?(gcc|g\+\+|cc|c\+\+|cpp|clang|clang\+\+|tcc|ld|as|rustc|go|nvcc|make|cmake|ninja)(-[\d.]+)?"
)
CACHES = (
    "var/lib/apt/lists/",
    "var/cache/apt/",
    "var/log/apt/",
    "root/.cache/",
    "home/train/.cache/",
    "tmp/",
    "var/tmp/",
)


@pytest.fixture
def other(docker: Docker) -> Iterator[str]:
    """A tag for a second image, which is gone after the test."""
    yield OTHER
    docker("rmi", "--force", OTHER)


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """A copy of what an image is built from."""
    for folder in ("docker", "jobs", "jobspec", "train"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(ROOT / ".dockerignore", tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def added_files(docker: Docker, base: str, image: str) -> set[str]:
    """Every file that the image has and its base has not."""
    listing = ["run", "--rm", "--user=0", "--entrypoint=find"]
    files = [
        set(docker(*listing, name, "/", "-xdev", "-type", "f", "-size", "+0", "-printf", r"%P\n").splitlines())
        for name in (image, base)
    ]
    return files[0] - files[1]


def test_images_of_the_page_are_built_on_ours_and_on_a_base_with_torch_and_run(
    docker: Docker, base: str, image: str, other: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text("import os, torch, einops; print('rank', os.environ['RANK'], os.getuid())\n")
    ours, theirs = re.findall(r"^```dockerfile\n(.*?)^```", (ROOT / "docs" / "image.md").read_text(), re.M | re.S)
    python = "RUN apt-get update && apt-get install --yes --no-install-recommends python3 python3-pip\n"
    python += "ENV PIP_BREAK_SYSTEM_PACKAGES=1\n"
    for text, start in ((ours, f"FROM {image}\n"), (theirs, f"FROM {base}\n{python}")):
        (tmp_path / "Dockerfile").write_text(re.sub(r"FROM .*\n", start, text))
        docker.build(other, base, tmp_path, "Dockerfile")
        said = docker("run", "--rm", other, "torchrun", "--standalone", "--nproc-per-node=2", "mine.py")
        assert sorted(said.splitlines()[-2:]) == ["rank 0 1000", "rank 1 1000"], said


def test_change_of_the_code_builds_only_the_layers_of_the_code(
    docker: Docker, base: str, image: str, other: str, context: Path
) -> None:
    changed = context / "train" / "errors.py"
    changed.write_text(changed.read_text() + "\n# changed\n")
    docker.build(other, base, context, REVISION="e2e")
    ours, theirs = (docker.inspect(name)["RootFS"]["Layers"] for name in (image, other))
    assert len(ours) == len(theirs)
    # train/ and what is compiled from it.
    assert [layer in theirs for layer in ours] == [True] * (len(ours) - 2) + [False] * 2


def test_only_torch_is_large(docker: Docker, base: str, image: str) -> None:
    """The base has torch here."""
    layers = [
        docker("history", "--human=false", "--no-trunc", "--format={{.Size}} {{.CreatedBy}}", name).splitlines()
        for name in (image, base)
    ]
    added = [(int(size), step) for size, _, step in (line.partition(" ") for line in layers[0][: -len(layers[1])])]
    code = sum(
        file.stat().st_size
        for path in ("train", "jobs/scripts", "jobspec/__init__.py", "jobspec/train.py", "jobspec/watch.py")
        for file in (ROOT / path, *(ROOT / path).rglob("*"))
        if file.is_file() and "__pycache__" not in file.parts
    )
    limits = {
        "command -v tini": 70e6,  # Python, pip and tini
        "--requirement /opt/requirements/requirements.lock": 80e6,  # half of it tensorboard with grpcio and protobuf
        " /app/": 1.01 * code,
        "compileall": 1.9 * code,
    }
    known = [(part, size) for size, step in added for part in limits if part in step]
    sizes = {part: sum(size for name, size in known if name == part) for part in limits}
    assert all(0 < sizes[part] < limit for part, limit in limits.items()), sizes
    assert sum(size for size, _ in added) - sum(sizes.values()) < 0.3e6  # the locks among others


def test_another_revision_builds_no_layer(docker: Docker, base: str, image: str, other: str) -> None:
    docker.build(other, base, REVISION="another")
    assert docker.inspect(other)["RootFS"]["Layers"] == docker.inspect(image)["RootFS"]["Layers"]
    assert docker.inspect(other)["Config"]["Labels"]["org.opencontainers.image.revision"] == "another"


def test_processes_are_not_root_and_know_the_version_of_the_code(docker: Docker, image: str) -> None:
    code = "import getpass, json, os, train; print(json.dumps([os.getuid(), os.getgid(), getpass.getuser(), "
    code += "train.__version__, train.__file__, os.environ['TRAIN_REVISION']]))"
    seen = json.loads(docker("run", "--rm", "--workdir=/", image, "python3", "-c", code))
    assert seen == [1000, 1000, "train", train.__version__, "/app/train/__init__.py", "e2e"]
    labels = docker.inspect(image)["Config"]["Labels"]
    assert labels["org.opencontainers.image.version"] == train.__version__
    assert labels["org.opencontainers.image.revision"] == "e2e"


def test_nothing_in_the_image_is_a_compiler(docker: Docker, image: str) -> None:
    find = ["--user=0", "--entrypoint=find", image, "/", "-xdev", "-not", "-type", "d", "-perm", "/111"]
    programs = docker("run", "--rm", *find).splitlines()
    assert any(program.endswith("/bin/python3") for program in programs)
    assert [program for program in programs if COMPILERS.fullmatch(Path(program).name)] == []


@pytest.mark.slow
def test_with_a_compiler_the_image_runs_torch_compile(docker: Docker, base: str, other: str) -> None:
    docker.build(other, base, REVISION="e2e", COMPILER="1")
    code = "import torch; f = torch.compile(lambda x: (x.sin() + 1).sum()); x = torch.ones(64); "
    code += "torch.testing.assert_close(f(x), (x.sin() + 1).sum()); print('compiled')"
    assert docker("run", "--rm", other, "python3", "-c", code).endswith("compiled")
    # What Triton compiles for a kernel on a GPU: C with Python's headers.
    code = "import os, subprocess, sysconfig; print(subprocess.run(['gcc', '-fsyntax-only', '-include', 'Python.h', "
    code += "'-I' + sysconfig.get_paths()['include'], '-xc', os.devnull]).returncode)"
    assert docker("run", "--rm", other, "python3", "-c", code) == "0"


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_base_without_torch_gets_the_release_that_the_dockerfile_fixes(docker: Docker, other: str) -> None:
    try:
        make_base(EMPTY, docker.environ)
    except NoBaseError as reason:
        pytest.skip(f"no base image: {reason}")
    docker.build(other, EMPTY)
    fixed = re.findall(r"^torch==(\S+)", (ROOT / "docker" / "torch.lock").read_text(), re.M)  # one for each Python
    code = "import torch, torchvision; print(torch.__version__)"
    found = docker("run", "--rm", other, "python3", "-c", code)
    docker("rmi", "--force", other, EMPTY)
    assert found.partition("+")[0] in fixed


def test_no_cache_and_no_leftover_is_in_the_image(added_files: set[str]) -> None:
    assert any(file.startswith("app/train/") for file in added_files)
    left = {file for file in added_files if file.startswith(CACHES) or file.endswith((".deb", ".whl", ".tar.gz"))}
    # pip carries wheels for the virtual environments that it makes.
    assert {file for file in left if not file.startswith("usr/share/python-wheels/")} == set()


def test_user_of_the_image_can_write_only_where_training_writes(docker: Docker, image: str) -> None:
    find = "find / -xdev -writable -not -type l -not -path '/proc/*' -not -path '/dev/*' 2>/dev/null || true"
    writable = docker("run", "--rm", "--entrypoint=bash", image, "-c", find).splitlines()
    tops = {file for file in writable if str(Path(file).parent) not in writable}
    assert tops == {"/checkpoints", "/runs", "/home/train", "/tmp", "/var/tmp", "/run/lock"} & tops
    assert {"/checkpoints", "/runs"} <= tops


def test_no_secret_of_the_folder_or_the_builder_is_in_the_image(
    docker: Docker, base: str, image: str, other: str, context: Path
) -> None:
    canary = "canary-7d1f"
    for name in (".env", "id_ed25519", "train/.env", "jobs/scripts/.netrc", "docker/token.txt", "runs/metrics.jsonl"):
        (context / name).parent.mkdir(exist_ok=True)
        (context / name).write_text(canary)
    address = f"https://user:{canary}@registry.example/"
    builder = Docker({**docker.environ, "WANDB_API_KEY": address, "PIP_INDEX_URL": address})
    builder.build(other, base, context, REVISION="e2e")
    grep = ["run", "--rm", "--user=0", "--entrypoint=grep", other]
    assert docker(*grep, "--recursive", "--files-with-matches", "version", "/app/train/__init__.py")
    found = docker(
        "run",
        "--rm",
        "--user=0",
        "--entrypoint=bash",
        other,
        "-c",
        f"! grep -rl {canary} /app /etc /home /opt /root /tmp /var",
    )
    assert found == ""
    assert canary not in docker("history", "--no-trunc", other) + json.dumps(docker.inspect(other))
    names = [variable.partition("=")[0] for variable in docker.inspect(other)["Config"]["Env"]]
    assert [name for name in names if names_secret(name)] == []
