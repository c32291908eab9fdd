"""What pyproject.toml cannot say: templates/ is a folder of jobspec, and the README of a wheel has no links."""

import re
from pathlib import Path

from setuptools import find_packages, setup

# PyPI shows it beside no other file of this repository.
_RELATIVE = r"!?\[([^\]]*)\]\((?!https?:)[^)]*\)"

setup(
    long_description=re.sub(_RELATIVE, r"\1", Path("README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
    packages=[*find_packages(include=["train*", "jobspec*"]), "jobspec.templates"],
    package_dir={"jobspec.templates": "templates"},
    package_data={"jobspec.templates": ["*.j2", "*.sh"]},
)
