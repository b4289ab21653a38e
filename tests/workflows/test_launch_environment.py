"""What a launch script sets around its trainer: variables, modules, options of srun."""

from __future__ import annotations

from pathlib import Path

import pytest

from search_spaces import load_space
from slurm import Site
from workflows.cli.main import main
from workflows.launch_script import read

SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2 --time=04:00:00
module purge
numactl --show
module load cuda/12.4 nccl
source /opt/venv/bin/activate
export NCCL_DEBUG=WARN CUDA_DEVICE_MAX_CONNECTIONS=1
export MASTER_ADDR=$(hostname) MASTER_PORT=29500
export LD_LIBRARY_PATH=/opt/lib:$LD_LIBRARY_PATH
TORCH_NCCL_AVOID_RECORD_STREAMS=1
export TORCH_NCCL_AVOID_RECORD_STREAMS
LOCAL=unused
PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True" \\
srun -N 2 --ntasks-per-node=8 --cpu-bind=none --mpi pmix \\
  python /opt/megatron/pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\
  --num-attention-heads 32 --seq-length 2048 --vocab-size 51200 --bf16 \\
  --micro-batch-size 1 --global-batch-size 64
"""


def init(script: str, cluster: str = "dgx_h100") -> None:
    Path("launch.sh").write_text(script)
    asked = ["--adapter", "megatron-lm", "--cluster", cluster, "--args", "launch.sh"]
    assert main(["init", "mine.yaml", *asked]) == 0


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_a_launch_script_sets_is_carried_or_told(capsys: pytest.CaptureFixture[str]) -> None:
    init(SCRIPT)
    env = load_space("mine.yaml").trainer.env
    assert env == {
        "NCCL_DEBUG": "WARN",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }
    site = Site.load("mine-site.yaml")
    assert site.modules == ["cuda/12.4", "nccl"]
    assert site.srun_options == ["--cpu-bind=none", "--mpi=pmix"]
    assert site.setup == [
        "source /opt/venv/bin/activate",
        'export LD_LIBRARY_PATH="/opt/lib:$LD_LIBRARY_PATH"',
    ]
    said = capsys.readouterr().out
    assert "left out: numactl --show" in said
    assert "meshtune submit mine.yaml --site mine-site.yaml --nodes 2 --time 04:00:00" in said
    assert "MASTER" not in said and "LOCAL=" not in said


@pytest.mark.parametrize("limit", ["04:00:00", "22", "15", "00:20:30", ""])
def test_submit_takes_the_line_that_is_printed(
    limit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    init(SCRIPT.replace("--time=04:00:00", f"-t {limit}" if limit else "--exclusive"))
    said = capsys.readouterr().out.splitlines()
    line = said[-1].partition("meshtune ")[2]
    kept = limit in ("04:00:00", "22")
    assert line.endswith(f"--time {limit}") if kept else int(line.split()[-1][:-1]) > 21
    assert any("starts no trial" in each for each in said) is (limit in ("15", "00:20:30"))
    assert main([*line.split(), "--dry-run"]) == 0


MODEL = """--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 \\
  --vocab-size 51200 --bf16 --micro-batch-size 1 --global-batch-size 64"""
PYXIS = f"""\
#!/bin/bash
#SBATCH -A me -p batch -N 2 --gpus-per-node=8
IMAGE="nvcr.io#nvidia/pytorch:25.04-py3"
DIR=$(pwd)
run_cmd="python -u ${{DIR}}/pretrain_gpt.py {MODEL}"
srun -l --container-image ${{IMAGE}} \\
  --container-mounts "/lustre:/lustre/,$DIR:/code:ro" --no-container-mount-home \\
  --container-writable --output=$DIR/%x.log sh -c "${{run_cmd}}"
"""
FRONTIER = f"""\
#!/bin/bash
#SBATCH -N 8
#SBATCH -C nvme
module load PrgEnv-gnu rocm/6.4.1
srun -N 8 -n 64 -c7 --gpus-per-task=1 --gpu-bind=closest python3 -u ./pretrain_gpt.py {MODEL}
"""
SHIFTER = f"""\
#!/bin/bash
#SBATCH --image=nersc/pytorch:24.08.01
#SBATCH --module=gpu,nccl-plugin
#SBATCH -C gpu -N 4 --ntasks-per-node 4
#SBATCH --volume="/dev/shm:/tmp"
srun -l -u --cpu-bind=cores shifter --env A=b bash -c "source vars.sh; python train.py {MODEL}"
"""
APPTAINER = f"""\
#!/bin/bash
cd /lustre/megatron
srun -N2 --ntasks-per-node=8 apptainer exec --nv -B /lustre,/data:/data:ro --pwd /code \\
  /lustre/ngc.sif python pretrain_gpt.py {MODEL}
"""


def test_a_pyxis_script_becomes_a_container_and_a_site(here: Path) -> None:
    init(PYXIS)
    trainer = load_space("mine.yaml").trainer
    assert trainer.container is not None
    assert trainer.container.image == "nvcr.io/nvidia/pytorch:25.04-py3"
    assert trainer.container.mounts == ["/lustre:/lustre", f"{here}:/code:ro"]
    assert f"{here}/pretrain_gpt.py" in (trainer.command or [])
    site = Site.load("mine-site.yaml")
    assert site.containers is not None and site.containers.runtime == "pyxis"
    assert site.containers.options == ["--container-writable"]
    assert site.gpus == "per_node"
    assert site.batch_options == ["--account=me", "--partition=batch", "--gpus-per-node=8"]


@pytest.mark.parametrize(("script", "told"), [(SHIFTER, True), (APPTAINER, False)])
def test_ranks_for_which_a_node_has_other_gpus_are_told(
    script: str, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    init(script, "dgx_h100")
    said = capsys.readouterr().out
    words = "starts 4 ranks on a node, and a node of dgx_h100 has 8 GPUs: name your nodes"
    assert (words in said) == told


@pytest.mark.parametrize("conda", ["conda", "/opt/miniforge3/bin/mamba"])
def test_the_hook_without_which_conda_activates_nothing_is_carried(conda: str) -> None:
    init(f'eval "$({conda} shell.bash hook)" && conda activate mega\neval $CMD\n{SCRIPT}')
    setup = Site.load("mine-site.yaml").setup
    assert setup[:2] == [f'eval "$({conda} shell.bash hook)"', "conda activate mega"]
    assert not any("CMD" in line for line in setup)


def test_a_folder_that_this_machine_lacks_is_left_out(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init(f"cd /no/such/Megatron-LM\n{SCRIPT}")
    told = "left out, as it is not here: cd /no/such/Megatron-LM (trainer.workdir)\n"
    assert told in capsys.readouterr().out
    assert load_space("mine.yaml").workdir is None
    Path("mine.yaml").unlink()
    Path("mine-site.yaml").unlink()
    init(f"cd {here}\n{SCRIPT}")
    assert load_space("mine.yaml").workdir == here


@pytest.mark.parametrize(("bind", "gpus"), [("none", "per_node"), ("closest", "per_task")])
def test_a_task_that_is_not_bound_to_its_gpu_sees_all_of_its_node(bind: str, gpus: str) -> None:
    init(f"#SBATCH --gpus-per-task=1 --gpu-bind={bind}\n{SCRIPT}")
    assert Site.load("mine-site.yaml").gpus == gpus


@pytest.mark.parametrize(
    ("option", "cluster", "told"),
    [
        ("-C gpu&hbm80g", "perlmutter", "GPUs of 80 GB (--constraint=gpu&hbm80g), and those of "),
        ("-C gpu&hbm40g", "perlmutter", ""),
        ("--gres=gpu:a100_40gb:8", "dgx_a100", "and those of dgx_a100 have 80 GiB: name yours"),
        ("--gres=nvme:9G,gpu:a100_40gb:8", "dgx_a100", "and those of dgx_a100 have 80 GiB: name"),
        ("--constraint=mem_256gb&a100-40gb", "dgx_a100", "GPUs of 40 GB (--constraint=mem_256gb"),
        ("--mem=480G", "dgx_a100", ""),
        ("--gres=gpu:8,nvme:100G", "dgx_a100", ""),
        ("--gres=lscratch:200G,gpu:8", "dgx_a100", ""),
        ("--constraint=mem128gb", "dgx_a100", ""),
        ("-C v100-32g", "jean_zay_v100", ""),
    ],
)
def test_gpus_with_another_memory_than_the_clusters_are_told(
    option: str, cluster: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    init(f"#SBATCH {option}\n{SCRIPT}", cluster)
    said = capsys.readouterr().out
    assert told in said if told else "asks for GPUs of" not in said


@pytest.mark.parametrize("started", ["/opt/venv/bin/python3.12 -u", "$VENV/bin/torchrun --nproc 8"])
def test_a_python_that_is_named_by_its_path_is_the_first_on_the_path_of_trials(
    started: str, capsys: pytest.CaptureFixture[str]
) -> None:
    init(f"srun -N2 {started} pretrain_gpt.py {MODEL}\n", "dgx_h100")
    folder = started.split()[0].rpartition("/")[0]
    assert Site.load("mine-site.yaml").setup == [f'export PATH="{folder}:$PATH"']
    Path("mine.yaml").unlink()
    Path("mine-site.yaml").unlink()
    init(APPTAINER.replace("python", started))
    assert f"left out: {started.split()[0]} (the image's" in capsys.readouterr().out
    assert not Site.load("mine-site.yaml").setup


@pytest.mark.parametrize(
    "agent", ["torchrun --nproc_per_node 8", "python -m torch.distributed.run"]
)
def test_cores_and_gpus_of_a_task_that_is_a_node_are_no_ranks(agent: str) -> None:
    """The job has 96 cores on a node: eight ranks of 96 each would never start."""
    asked = "#SBATCH -N 2 --ntasks-per-node=1 -c 96 --gpus-per-task=8\n"
    init(f"{asked}srun {agent} pretrain_gpt.py {MODEL}\n")
    site = Site.load("mine-site.yaml")
    assert (site.gpus, site.cpus_per_rank) == ("per_node", None)


@pytest.mark.parametrize(
    "before",
    [
        "srun --chdir=/work/deepspeed",
        "srun --container-workdir=/opt/axolotl --container-image=nvcr.io/me/deepspeed",
        "srun --container-image nvcr.io/me/deepspeed",
        "srun -J deepspeed",
        "srun conda run -n deepspeed",
        "srun conda run --prefix deepspeed --no-capture-output",
        "srun apptainer exec /images/deepspeed",
    ],
)
def test_what_bears_an_agents_name_is_none(before: str) -> None:
    asked = "#SBATCH -N 4 --ntasks-per-node=8 -c 8\n"
    Path("run.sh").write_text(f"{asked}{before} python pretrain_gpt.py {MODEL}\n")
    assert read(Path("run.sh")).ranks == 32
    init(Path("run.sh").read_text())
    assert Site.load("mine-site.yaml").cpus_per_rank == 8


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ("uv run --no-sync torchrun --nproc_per_node 8", "uv run --no-sync"),
        ("srun -l conda run -n deepspeed python", "conda run -n deepspeed"),
        ("srun enroot start -m /data:/data ngc sh -c 'python", "enroot start -m /data:/data ngc"),
        ("exec pixi run -e gpu python3 -u", "pixi run -e gpu"),
        ("srun numactl --cpunodebind=0 /opt/venv/bin/python", "numactl --cpunodebind=0"),
        ("mpirun -np 8 env A=b python", ""),
        ("/opt/ompi/bin/mpirun -np 8 python", ""),
        ("srun -l bash -lc 'python", ""),
        ("srun apptainer exec --nv /lustre/ngc.sif python", ""),
        ("deepspeed --num_gpus 8", ""),
    ],
)
def test_programs_around_a_trainer_that_trials_run_without_are_told(
    before: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    quote = "'" * before.count("'")
    init(f"{before} pretrain_gpt.py {MODEL}{quote}\n")
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("left out")]
    assert said == ([f"left out: {told} (trials are started without it)"] if told else [])


def test_nodes_that_srun_alone_is_told_are_a_trials(here: Path) -> None:
    init(f"srun -N 4 -n 32 -c 8 python pretrain_gpt.py {MODEL}")
    assert load_space("mine.yaml").widths == (4,)


def test_a_shipped_profile_is_what_a_script_adds_to() -> None:
    init(FRONTIER, "frontier")
    site, shipped = Site.load("mine-site.yaml"), Site.load("frontier")
    assert (site.gpus, site.cpus_per_rank, site.env) == ("per_task", 7, shipped.env)
    assert site.modules == ["PrgEnv-gnu", "rocm/6.4.1"]
    assert "--constraint=nvme" in site.batch_options
    assert {*shipped.batch_options} < {*site.batch_options}


def test_wrapped_runtimes_become_containers(capsys: pytest.CaptureFixture[str]) -> None:
    init(SHIFTER, "perlmutter")
    container = load_space("mine.yaml").trainer.container
    site = Site.load("mine-site.yaml")
    assert container is not None and container.image == "nersc/pytorch:24.08.01"
    assert container.mounts == ["/dev/shm:/tmp"]
    assert site.containers is not None and site.containers.runtime == "shifter"
    assert site.containers.options == ["--module=gpu,nccl-plugin"]
    said = capsys.readouterr().out
    assert "left out: source vars.sh" in said and "left out: --env A=b" in said
    for file in ("mine.yaml", "mine-site.yaml"):
        Path(file).unlink()
    init(APPTAINER)
    trainer, site = load_space("mine.yaml").trainer, Site.load("mine-site.yaml")
    assert trainer.container is not None and trainer.workdir == "/code"
    assert trainer.container.mounts == ["/lustre:/lustre", "/data:/data:ro"]
    assert site.containers is not None and site.containers.options == ["--nv"]


# As the examples of modelscope/ms-swift (3602360) and huggingface/trl (f2cd577) start them.
@pytest.mark.parametrize(
    ("script", "adapter", "said"),
    [
        ("CUDA_VISIBLE_DEVICES=0,1 \\\nNPROC_PER_NODE=2 \\\nswift sft --model m --max_length 8192",
         "ms-swift", "wrote mine.yaml"),
        ("accelerate launch --config_file examples/accelerate_configs/deepspeed_zero3.yaml "
         "trl/scripts/sft.py --model_name_or_path m --max_length 8192",
         "trl", "left out: --config_file examples/accelerate_configs/deepspeed_zero3.yaml"),
    ],
)  # fmt: skip
def test_a_launchers_own_gpus_and_file_are_not_a_trials(
    script: str, adapter: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("launch.sh").write_text(script)
    told = ["--adapter", adapter, "--cluster", "dgx_h100", "--model", "llama_8b"]
    assert main(["init", "mine.yaml", *told, "--args", "launch.sh"]) == 0
    assert said in capsys.readouterr().out
    assert load_space("mine.yaml").trainer.env == {}
