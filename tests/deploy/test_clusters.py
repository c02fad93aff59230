"""What starts a run on a cluster: the script for Slurm and the manifest for KubeRay."""

import shlex
import subprocess

import yaml

from espalier.app.config.parse import parse_config, read_arguments
from espalier.version import __version__
from tests.test_package import ROOT

SLURM, KUBERAY = ROOT / "deploy/slurm/espalier.sbatch", ROOT / "deploy/kuberay/espalier.yaml"


def config_of(command):
    """Return the config of a run's command line."""
    name, *settings = shlex.split(command)
    assert name == "espalier"
    return parse_config(read_arguments(settings))


def test_a_job_of_slurm_starts_ray_on_its_machines_and_a_run_over_them(tmp_path):
    """With stand-ins for the programs of Slurm, Ray and the project that write down how they were called."""
    for name in ("ray", "espalier"):
        (tmp_path / name).write_text(f'#!/bin/bash\necho {name} "$@" >> {tmp_path}/calls\n')
    (tmp_path / "scontrol").write_text("#!/bin/bash\nprintf 'one\\ntwo\\nthree\\n'\n")
    (tmp_path / "srun").write_text(
        '#!/bin/bash\nwhile [[ $1 == --* ]]; do echo -n "$1 " >> ' + f'{tmp_path}/calls; shift; done; "$@"\n'
    )
    (tmp_path / "sleep").write_text("#!/bin/bash\n/bin/sleep 0.2\n")
    for program in tmp_path.iterdir():
        program.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "ESPALIER_VENV": "/nowhere",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "some[1-3]",
        "SLURM_JOB_NUM_NODES": "3",
        "SLURM_CPUS_PER_TASK": "4",
    }
    subprocess.run(["bash", SLURM, "num-clients=6", "num-edges=3"], env=environment, check=True, timeout=60)
    head, others, run = (tmp_path / "calls").read_text().splitlines()
    assert "--nodelist=one" in head
    assert head.endswith("ray start --head --node-ip-address=one --port=6379 --num-cpus=4 --block")
    assert "--nodes=2 --ntasks=2 --exclude=one" in others
    assert others.endswith("ray start --address=one:6379 --num-cpus=4 --block")
    config = config_of(run[run.index("espalier") :])
    assert (config.ray.address, config.output_dir, config.edges) == ("one:6379", "results/7", 3)


def test_the_manifest_runs_this_edition_with_the_ray_that_it_was_tested_with():
    job = yaml.safe_load(KUBERAY.read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    assert f"ray=={cluster['rayVersion']}" in (ROOT / "constraints.txt").read_text().splitlines()
    config = config_of(job["spec"]["entrypoint"])
    assert (config.ray.address, config.output_dir) == ("auto", "/results/run")
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    containers = [container for group in groups for container in group["template"]["spec"]["containers"]]
    assert {container["image"].rpartition(":")[2] for container in containers} == {__version__}
    (mount,) = containers[0]["volumeMounts"]
    assert mount["name"] in {volume["name"] for volume in groups[0]["template"]["spec"]["volumes"]}
