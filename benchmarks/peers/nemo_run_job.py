"""Print NeMo-Run's batch script for the benchmark's job; run by NeMo-Run's Python, with arguments NODES and PROCS."""

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
            packager=run.Packager(),  # other packagers would pack the folder into an archive
            tunnel=run.LocalTunnel(job_dir=folder),
        )
        with run.Experiment("train", base_dir=folder) as experiment:
            experiment.add(run.Script("train.py"), executor=executor, name="train")
            experiment.dryrun()


if __name__ == "__main__":
    main()
