"""The difference is one that `patch` can apply, whatever the file holds."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobspec.difference import difference

some_text = st.lists(st.sampled_from(["a", "b\n", "\n", "c\r", "\u2028", "é", "+", "-", "@@"])).map("".join)


@settings(max_examples=25)
@given(old=some_text.map(str.encode) | st.binary().filter(lambda data: b"\0" not in data), new=some_text)
def test_patch_makes_the_new_file_of_the_old_one(
    tmp_path_factory: pytest.TempPathFactory, old: bytes, new: str
) -> None:
    folder: Path = tmp_path_factory.mktemp("patch")
    (folder / "file").write_bytes(old)
    text = difference(old, new, "file", "file")
    assert (text == "") == (old == new.encode())
    (folder / "patch").write_bytes(text.encode(errors="surrogateescape"))
    subprocess.run(["patch", "--binary", "--quiet", "file", "patch"], cwd=folder, check=True)
    # patch removes a file that becomes empty
    made = (folder / "file").read_bytes() if (folder / "file").exists() else b""
    assert made == new.encode()
