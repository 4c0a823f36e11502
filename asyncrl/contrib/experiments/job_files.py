"""Writes the runs of a grid as a job of a cluster: an array job of Slurm, or an indexed Job of Kubernetes.

Task i of the job makes run i: a task that is started again resumes its run, and one whose run is finished ends at once.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import yaml

from asyncrl.contrib.experiments.runs import PlannedRun
from asyncrl.storage.run_folder import as_folder_name

Format = Literal["slurm", "kubernetes"]
FILE_NAMES: dict[Format, str] = {"slurm": "launch.sbatch", "kubernetes": "launch.yaml"}
_MOUNTED_AT = "/runs"

_SLURM = """\
#!/usr/bin/env bash
# {count} runs, one in each task of an array job: sbatch {file}
# All machines have to see the folder {train_dir}. Edit the lines below for your cluster.

#SBATCH --job-name={name}
#SBATCH --array=0-{last}{at_once}
#SBATCH --cpus-per-task={cores}
#SBATCH --time=24:00:00
# SIGTERM two minutes before the limit: the run saves and ends. A task that is started again resumes its run.
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output="{log_folder}/slurm-%A_%a.log"

set -euo pipefail
{choice}
exec srun --cpus-per-task="$SLURM_CPUS_PER_TASK" asyncrl train "$@"
"""
_KUBERNETES = """\
# {count} runs, one in each pod of an indexed Job: kubectl apply -f {file}
#
# To edit: the image, which holds asyncrl and the environments; cores and memory; the claim, which all pods have to be
# able to write (ReadWriteMany) and which is the folder of the runs. backoffLimitPerIndex needs Kubernetes 1.29.
"""


def job_file(runs: Sequence[PlannedRun], job_format: Format, path: Path, max_tasks: int | None = None) -> str:
    """The text of a job's file.

    Args:
        runs: the runs; task i makes the i-th.
        job_format: for which kind of cluster.
        path: the file that it will be, for its name and its comments.
        max_tasks: most tasks at the same time; None for all.
    """
    train_dir = runs[0].train_dir
    cores = max(run.threads for run in runs)
    name = as_folder_name(train_dir.name).lower().replace("_", "-").replace(".", "-")
    if job_format == "slurm":
        return _SLURM.format(
            count=len(runs),
            file=path,
            train_dir=train_dir,
            log_folder=str(train_dir).replace("%", "%%"),  # Slurm replaces %A, %a and others
            name=name,
            last=len(runs) - 1,
            at_once="" if max_tasks is None else f"%{max_tasks}",
            cores=cores,
            choice=_choice("SLURM_ARRAY_TASK_ID", runs, str(train_dir)),
        )
    script = f'{_choice("JOB_COMPLETION_INDEX", runs, _MOUNTED_AT)}\nexec asyncrl train "$@"\n'
    job = _kubernetes_job(name, script, len(runs), max_tasks, cores)
    return _KUBERNETES.format(count=len(runs), file=path) + yaml.dump(
        job, Dumper=_Dumper, sort_keys=False, width=10_000
    )


def _choice(variable: str, runs: Sequence[PlannedRun], train_dir: str) -> str:
    """Shell code that sets the arguments of one run, chosen by the number of the task."""
    cases = []
    for number, run in enumerate(runs):
        arguments = [*run.flags, f"--train_dir={train_dir}", f"--experiment={run.name}"]
        cases.append(f"  {number}) set -- {shlex.join(arguments)} ;;")
    return "\n".join([f'case "${variable}" in', *cases, "esac"])


def _kubernetes_job(name: str, script: str, count: int, max_tasks: int | None, cores: int) -> dict[str, Any]:
    resources = {"cpu": str(cores), "memory": f"{2 + cores}Gi"}
    container = {
        "name": "run",
        "image": "registry.example.com/asyncrl:latest",
        "command": ["bash", "-c"],
        "args": [script],
        "resources": {"requests": resources, "limits": resources},
        "volumeMounts": [{"name": "runs", "mountPath": _MOUNTED_AT}],
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 120,  # SIGTERM saves and ends
        "containers": [container],
        "volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": "asyncrl-runs"}}],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "completionMode": "Indexed",
            "completions": count,
            "parallelism": min(count, max_tasks or count),
            "backoffLimitPerIndex": 2,
            "template": {"spec": pod},
        },
    }


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and nothing as a reference to something before."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)
