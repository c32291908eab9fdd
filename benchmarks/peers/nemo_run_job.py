"""The batch script that NeMo-Run makes of the benchmark's job; started by its own Python, with NODES and PROCS."""

from __future__ import annotations

import sys
import tempfile

import nemo_run as run


def main() -> None:
    nodes, procs_per_node = map(int, sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        executor = run.SlurmExecutor(
            account="team",
            nodes=nodes,
            ntasks_per_node=procs_per_node,
            gpus_per_node=procs_per_node,
            cpus_per_task=32,
            container_image="registry.example/train:1",
            launcher="torchrun",
            packager=run.Packager(),  # the others would pack the folder into an archive
            tunnel=run.LocalTunnel(job_dir=folder),
        )
        with run.Experiment("train", base_dir=folder) as experiment:
            experiment.add(run.Script("train.py"), executor=executor, name="train")
            experiment.dryrun()


if __name__ == "__main__":
    main()
