"""What pyproject.toml cannot say: templates/ is installed as a folder of the package jobspec."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["train*", "jobspec*"]), "jobspec.templates"],
    package_dir={"jobspec.templates": "templates"},
    package_data={"jobspec.templates": ["*.j2", "*.sh"]},
)
