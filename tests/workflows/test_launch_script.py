"""What is read from launch scripts in the styles of several frameworks' examples."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from foundation.files import FileError
from workflows.launch_script import read

OLD = """\
#!/bin/bash
# Trains the "345M" model; it's distributed
TP=2
CHECKPOINT=<Specify path>
GPT_ARGS="
    --tensor-model-parallel-size ${TP} \\
    --micro-batch-size ${MICRO:-"4"} \\
    --global-batch-size $((TP * 8))
"
cat <<EOT > ds_config.json
{ "x": "it's", "y": $TP }
EOT
GPT_ARGS="$GPT_ARGS --fp16"
torchrun $DISTRIBUTED_ARGS --nproc_per_node 8 pretrain_gpt.py \\
    $GPT_ARGS \\
    --save $CHECKPOINT --bf16 >> log 2>&1 &
echo done
"""
QUOTED = """\
CMD="python -u -m torch.distributed.run --nproc_per_node=8 /opt/train.py --num-layers 4"
ARGS=(--betas 0.9 0.95)  # of AdamW
ARGS+=(--name "a b" --shift -1)
UNUSED=(--never 1)
srun --label bash -c "$CMD ${ARGS[*]} --account-for-loss"
"""
TITAN = """\
CONFIG=${CONFIG:-"./llama.toml"}
PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True" \\
torchrun --nproc_per_node=${NGPU} --rdzv_endpoint="localhost:0" --role rank --tee 3 \\
-m torchtitan.train --job.config_file ${CONFIG} --compile.enable $overrides
"""


@pytest.mark.parametrize(
    ("text", "entry", "arguments", "left_out"),
    [
        (
            OLD,
            "pretrain_gpt.py",
            "--tensor-model-parallel-size 2 --micro-batch-size 4 --global-batch-size 16 "
            "--fp16 --bf16",
            ["--save $CHECKPOINT"],
        ),
        (
            QUOTED,
            "/opt/train.py",
            "--num-layers 4 --betas 0.9 0.95 --name a b --shift -1 --account-for-loss",
            [],
        ),
        (
            TITAN,
            "torchtitan.train",
            "--job.config_file ./llama.toml --compile.enable",
            ["$overrides"],
        ),
        (  # torchtitan's own script for Slurm: the output of a command is no command
            "IP=$(srun -N1 --ntasks=1 hostname --ip-address)\n"
            'srun torchrun --nproc_per_node 8 --rdzv_endpoint "$IP:1" -m torchtitan.train --a 1',
            "torchtitan.train",
            "--a 1",
            [],
        ),
        (  # as DeepSpeed's own scripts count their GPUs: a command within arithmetic
            "G=$(($(ds_ssh nvidia-smi --query-gpu=name --format=csv | wc -l)-2))\n"
            'O=" --load out/g${G}_z1 --bf16"\nO="${O} --a 1"\ndeepspeed x.py ${O}',
            "x.py",
            "--bf16 --a 1",
            ["--load out/g$(($(ds_ssh nvidia-smi --query-gpu=name --format=csv | wc -l)-2))_z1"],
        ),
        ("--num-layers 4 \\\n--bf16\n--lr 3e-4\n", "", "--num-layers 4 --bf16 --lr 3e-4", []),
        ("ARGS=(\n --num-layers 4\n --bf16)\n", "", "--num-layers 4 --bf16", []),
        (
            'G=$((8*N))\nx.py --lr $((1/0)) --n "$((2 * ${A:-3}))" --g $G',
            "x.py",
            "--n 6",
            ["--lr $((1/0))", "--g $((8*N))"],
        ),
        ('A=("--lr 1" "--bf16")\nx.py ${A[@]} --m $1 --m $1', "x.py", "--lr 1 --bf16", ["--m $1"]),
        (  # several data sets, in folders that only a shell knows
            "x.py --lr 1 --data-path 0.7 $SCRATCH/a 0.3 ${SCRATCH}/b --bf16 2 $MORE",
            "x.py",
            "--lr 1 --bf16 2",
            ["--data-path 0.7 $SCRATCH/a 0.3 ${SCRATCH}/b", "$MORE"],
        ),
        ('A=(--a 1)\nA=(\n "${A[@]}"\n --b 2)\nx.py ${A[@]}', "x.py", "--a 1 --b 2", []),
        ("A=" + "$A$A\nA=" * 30 + "x\nx.py $A", "x.py", "x", []),
        ('A=\'x.py "$A" b\'\nbash -c "$A"', "x.py", "", ['x.py "$A" b b']),
    ],
)
def test_a_script_is_read_without_running_it(
    tmp_path: Path, text: str, entry: str, arguments: str, left_out: list[str]
) -> None:
    (tmp_path / "launch.sh").write_text(text)
    launched = read(tmp_path / "launch.sh")
    assert launched.entry == entry
    assert " ".join(launched.arguments) == arguments
    assert launched.left_out == left_out


# As NVIDIA/Megatron-LM's examples/llama and examples/megatron_fsdp have it (d98e8a6).
BRANCHES = """\
TOKENIZER=${{3:-"MOCK"}}
FOLDER=()
{before}
if [[ "$TOKENIZER" == "MOCK" ]] || [[ -z "$TOKENIZER" ]]; then
    DATA+=( "--mock-data"
        "--tokenizer-type NullTokenizer" )
    if [ ! -d /none ]; then FOLDER=(--cache /c); fi
elif [ "$TOKENIZER" = "other" ]; then
    DATA+=(--other)
else
    DATA+=(--data-path /d)
fi
torchrun pretrain_gpt.py ${{DATA[@]}} ${{FOLDER[@]}}
"""


@pytest.mark.parametrize(
    ("before", "arguments"),
    [
        ("", "--mock-data --tokenizer-type NullTokenizer --cache /c"),
        ("TOKENIZER=other", "--other"),
        ("TOKENIZER=mine", "--data-path /d"),
        (  # only a shell knows: all of them
            "TOKENIZER=$(cat name)",
            "--mock-data --tokenizer-type NullTokenizer --other --data-path /d --cache /c",
        ),
        ("if torchrun pretrain_gpt.py --bf16 --a 1 --b 2 --c 3 --d 4; then echo; fi",
         "--bf16 --a 1 --b 2 --c 3 --d 4"),
    ],
)  # fmt: skip
def test_of_branches_that_one_is_read_that_runs(
    tmp_path: Path, before: str, arguments: str
) -> None:
    (tmp_path / "run.sh").write_text(BRANCHES.format(before=before))
    launched = read(tmp_path / "run.sh")
    assert (launched.entry, " ".join(launched.arguments)) == ("pretrain_gpt.py", arguments)


@pytest.mark.parametrize(
    "inner",
    [
        "for i in 1 2; do if [ -f x ]; then X=1; fi; done",
        "{ if [ -f x ]; then X=1; fi; }",
        "! if [ -f x ]; then X=1; fi",
        "time if [ -f x ]; then X=1; fi",
        "echo do if",
    ],
)
@pytest.mark.parametrize(("first", "arguments"), [(1, "--good 1"), (2, "--bad 1")])
def test_an_if_behind_a_word_of_the_shell_ends_with_its_own_fi(
    tmp_path: Path, inner: str, first: int, arguments: str
) -> None:
    text = f'if [ "$A" = 1 ]; then {inner}; ARGS="--good 1"; else ARGS="--bad 1"; fi\n'
    (tmp_path / "run.sh").write_text(f"A={first}\n{text}python train.py $ARGS\n")
    assert " ".join(read(tmp_path / "run.sh").arguments) == arguments


CASES = """\
#!/bin/bash
# case of sizes in
SIZE=${{1:-{size}}}
case "$SIZE" in
  7b | "7B")
    L=32
    ;;
  (13b) L=40; echo "(a) case"  ;;
  *) case $KIND in
       deep) L=90 ;;
     esac
     L=${{L:-2}} ;;
esac
if [ "$SIZE" = 13b ]; then H=5120; fi
srun python train.py --layers $L --hidden ${{H:-4096}}
"""


@pytest.mark.parametrize(
    ("size", "arguments"),
    [
        ("7b", "--layers 32 --hidden 4096"),
        ("7B", "--layers 32 --hidden 4096"),
        ("13b", "--layers 40 --hidden 5120"),
        ("1b\nKIND=deep", "--layers 90 --hidden 4096"),
        ("1b\nKIND=wide", "--layers 2 --hidden 4096"),
    ],
)
def test_of_cases_that_one_is_read_that_holds(tmp_path: Path, size: str, arguments: str) -> None:
    script = CASES.format(size=size).replace("\nKIND=deep}", "}\nKIND=deep")
    (tmp_path / "run.sh").write_text(script.replace("\nKIND=wide}", "}\nKIND=wide"))
    launched = read(tmp_path / "run.sh")
    assert (" ".join(launched.arguments), launched.dropped) == (arguments, [])


@pytest.mark.parametrize(
    ("patterns", "size", "layers"),
    [
        ("7[bB]) L=32;; 70[bB]) L=80;; 13B) L=40;;", "70B", "80"),
        ("*7b) L=32;; *13b) L=40;;", "llama-13b", "40"),
        ("?b) L=32;; llama*) L=40;; *) L=9;;", "7b", "32"),
        ("'*b') L=32;; [!0-6]b) L=40;;", "7b", "40"),
        ("7B) L=32;; *) L=40;;", "7b", "40"),
        ("[[:digit:]]b) L=32;; *) L=40;;", "7b", "40"),  # only a shell knows: all of them
    ],
)
def test_patterns_of_a_case_are_those_of_file_names(
    tmp_path: Path, patterns: str, size: str, layers: str
) -> None:
    text = f"MODEL={size}; case $MODEL in {patterns} esac\npython train.py --layers $L\n"
    (tmp_path / "run.sh").write_text(text)
    assert read(tmp_path / "run.sh").arguments == ["--layers", layers]


def test_options_of_key_and_value_have_no_dashes(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        "export LOSS=1\nRUN=a\n"
        "python3 -m MaxText.train base.yml run_name=$RUN steps=$STEPS dtype=bfloat16\n"
    )
    launched = read(tmp_path / "run.sh", key_value=True)
    assert (launched.entry, launched.module) == ("MaxText.train", True)
    assert launched.arguments == ["base.yml", "run_name=a", "dtype=bfloat16"]
    assert launched.left_out == ["steps=$STEPS"]


@pytest.mark.parametrize(
    "text", ['"', "$(", "${", "$((((", '"$(a"\'', "<<EOT\n", "a ", "`a", "\\", "read ",
             "if ", "if [ a\n", "if [ a ]\nthen\n", "if [ a = b ]\nthen\n",
             "case a in ", "case a in b|", 'case a in "', "a) "]
)  # fmt: skip
def test_a_script_that_opens_and_never_closes_is_read_in_linear_time(
    tmp_path: Path, text: str
) -> None:
    script = tmp_path / "launch.sh"
    script.write_text((text * 100_000)[:99_000])
    began_s = time.process_time()
    read(script)
    assert time.process_time() - began_s < 10  # minutes where it is quadratic


def test_a_loop_over_a_here_document_is_read(tmp_path: Path) -> None:
    text = "while read lr; do python train.py --lr $lr --bf16; done <<EOF\n1e-4\nEOF\n"
    (tmp_path / "launch.sh").write_text(text)
    assert read(tmp_path / "launch.sh").arguments == ["--bf16"]


@pytest.mark.parametrize(
    ("text", "line", "quote"),
    [
        ("x.py a 'open\necho b", 1, "'"),
        ("A=1 \\\n  B=2\ncat <<E\nit's\nE\nx.py \\\n  --lr \"1 --bf16\n", 7, '"'),
    ],
)
def test_a_quote_that_is_not_closed_is_an_error_that_names_its_line(
    tmp_path: Path, text: str, line: int, quote: str
) -> None:
    script = tmp_path / "launch.sh"
    script.write_text(text)
    with pytest.raises(FileError, match=rf"launch\.sh:{line}: the quote {quote} is not closed"):
        read(script)


SLURM = """\
#SBATCH --nodes=4
#SBATCH --gres=gpu:a100:8
WORLD=$((SLURM_NNODES * $SLURM_GPUS_ON_NODE))
LAUNCHER="{launcher}"
srun bash -c "$LAUNCHER train.py --batch $((WORLD*2)) \\
    --tokenizer-type X --tokenizer-model $T --bf16"
"""


@pytest.mark.parametrize(
    ("launcher", "ranks"),
    [
        ("torchrun --nnodes $SLURM_NNODES --nproc-per-node=8", 32),
        ("accelerate launch --num_processes $WORLD --num_machines 4", 32),
        ("deepspeed --num_gpus 4", 16),
        ("torchrun --nproc_per_node auto", 0),
        ("torchrun --nproc_per_node 8 --rdzv_endpoint $(srun -N1 --ntasks=1 hostname)", 32),
        # a task is a node: its number is not that of the ranks
        ("srun --ntasks-per-node=1 torchrun --nproc-per-node=8", 32),
        ("srun --ntasks=4 torchrun --nproc-per-node=8", 32),
        ("srun --ntasks-per-node=1 accelerate launch --config_file a.yaml", 0),
        ("srun --ntasks-per-node=1 --pty torchrun --nproc-per-node=8", 32),
        ("srun --ntasks-per-node=1 /opt/venv/bin/torchrun --nproc-per-node=8", 32),
        ("srun --ntasks-per-node=1 conda run -n deepspeed deepspeed --num_gpus 8", 32),
        ("srun --ntasks-per-node=8 python", 32),
    ],
)
def test_nodes_and_ranks_are_those_that_the_launcher_starts(
    tmp_path: Path, launcher: str, ranks: int
) -> None:
    (tmp_path / "launch.sh").write_text(SLURM.format(launcher=launcher))
    together = [["tokenizer-type", "tokenizer-model"]]
    launched = read(tmp_path / "launch.sh", together=together)
    assert (launched.nodes, launched.ranks) == (4, ranks)
    assert launched.arguments == ["--batch", "64", "--bf16"]
    assert launched.left_out == ["--tokenizer-model $T", "--tokenizer-type X"]


@pytest.mark.parametrize(
    ("line", "ranks", "arguments"),
    [
        ("axolotl train a.yaml --launcher torchrun -- --nproc_per_node=4", 4, 3),
        ("srun -- axolotl train a.yaml lr=1", 0, 2),
        ("srun -n 8 -- axolotl train a.yaml lr=1 -- --nproc_per_node=4", 4, 2),
        ("export NNODES=2\nNPROC_PER_NODE=4 swift sft --model m", 8, 2),
        ("trl sft --model m --num_processes 4", 4, 4),
        ("NPROC_PER_NODE=4 python train.py --num_processes 4", 0, 2),
        # Lightning's ranks are Slurm's tasks
        ("#SBATCH -N 2 --ntasks-per-node=8\nsrun litgpt pretrain m --devices 8", 16, 3),
    ],
)
def test_ranks_are_those_that_a_trainers_command_is_told(
    tmp_path: Path, line: str, ranks: int, arguments: int
) -> None:
    (tmp_path / "launch.sh").write_text(line)
    launched = read(tmp_path / "launch.sh")
    assert (launched.ranks, len(launched.arguments)) == (ranks, arguments)


def test_the_home_folder_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    (tmp_path / "launch.sh").write_text(
        "source ~/conda.sh\nexport CACHE=~/cache\nDATA=$HOME/data\n"
        "python ~/train.py --data $DATA --save '~/kept' --mask ~a\n"
    )
    launched = read(tmp_path / "launch.sh")
    assert launched.entry == "/home/me/train.py"
    assert launched.arguments == ["--data", "/home/me/data", "--save", "~/kept", "--mask", "~a"]
    assert launched.environment == {"CACHE": "/home/me/cache"}
    assert launched.set_up == ['source "$HOME/conda.sh"']


def test_lines_that_a_shell_runs_leave_it_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials run on other machines, and a group shares the site profile."""
    monkeypatch.setenv("HOME", "/home/me")
    (tmp_path / "launch.sh").write_text(
        'source "$HOME/conda.sh"\n'
        'export PATH=~/bin:~/c:$PATH LIST="~/a:~/b" A=~/a:~ B=${HOME:-/x}\n'
        "ROOT=$HOME/r\nsource $ROOT/env.sh\npython $ROOT/train.py --data ${HOME}/data --bf16\n"
    )
    launched = read(tmp_path / "launch.sh")
    assert launched.set_up == [
        'source "$HOME/conda.sh"',
        'source "$HOME/r/env.sh"',
        'export PATH="$HOME/bin:$HOME/c:$PATH"',
    ]
    assert launched.environment == {"LIST": "~/a:~/b", "A": "/home/me/a:/home/me", "B": "/home/me"}
    assert launched.entry == "/home/me/r/train.py"
    assert launched.arguments == ["--data", "/home/me/data", "--bf16"]


def test_a_home_folder_that_is_not_known_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(Path, "home", lambda: 1 / 0)
    (tmp_path / "launch.sh").write_text("export C=~/c\npython train.py --data ~/data --bf16\n")
    launched = read(tmp_path / "launch.sh")
    assert (launched.arguments, launched.left_out) == (["--bf16"], ["--data $HOME/data"])
    assert (launched.environment, launched.set_up) == ({}, ['export C="$HOME/c"'])
