"""Lines of a launch script that a shell reads in its own way: comments, eval, own options."""

from __future__ import annotations

from pathlib import Path

import pytest

from workflows.launch_script import read
from workflows.launch_site import site_part

# In the styles of BigScience's scripts for Slurm and of Megatron-DeepSpeed's examples.
COMMENTED = """\
ARGS=""
OPTIONS=(
    --num-layers 2
    # --pipeline 8 \\
    --bf16
)
ARGS=" --deepspeed ${ARGS}"
#   --never 1 \\
export CMD=" \\
    `pwd`/train.py \\
    ${OPTIONS[@]} $ARGS"
echo $CMD --not 1 --an 2 --option 3
"""


@pytest.mark.parametrize("command", ['srun bash -c "python -u $CMD"', "A=python; eval $A $CMD"])
def test_a_comment_ends_with_its_line_and_what_is_shown_is_not_started(
    tmp_path: Path, command: str
) -> None:
    (tmp_path / "run.sh").write_text(f"{COMMENTED}{command}\n")
    launched = read(tmp_path / "run.sh")
    assert launched.entry == f"{tmp_path}/train.py"
    assert " ".join(launched.arguments) == "--num-layers 2 --bf16 --deepspeed"
    assert (launched.left_out, launched.dropped, launched.set_up) == ([], [], [])
    assert dict(launched.environment) == {}


def test_a_line_that_is_evaluated_is_the_command(tmp_path: Path) -> None:
    text = 'run="deepspeed train.py\n --bf16 &> ${LOG}.txt"\necho ${run}\neval ${run}\n'
    (tmp_path / "run.sh").write_text(text)
    launched = read(tmp_path / "run.sh")
    assert (launched.arguments, launched.left_out, launched.dropped) == (["--bf16"], [], [])
    assert site_part(launched, "dgx_h100").left_out == []


OWN_OPTIONS = """\
DATA="MOCK"
TP=2
while {condition}; do
    case $1 in
        --data) DATA="$2"
            for each in $2; do echo $each; done
            shift 2 ;;
        *) echo "usage: run.sh --data PATH --tp N"; exit 1 ;;
    esac
done
if [ $DATA = MOCK ]; then ARGS=--mock-data; else ARGS="--data-path $DATA"; fi
torchrun train.py $ARGS --tp $TP
"""


@pytest.mark.parametrize(
    "condition", ["[[ $# -gt 0 ]]", '[ "$#" -gt 0 ]', '[ -n "$1" ]', "(( ${#} ))", "getopts d: o"]
)
def test_a_script_that_takes_options_is_read_as_started_without_any(
    tmp_path: Path, condition: str
) -> None:
    (tmp_path / "run.sh").write_text(OWN_OPTIONS.format(condition=condition))
    launched = read(tmp_path / "run.sh")
    assert launched.arguments == ["--mock-data", "--tp", "2"]
    assert launched.left_out == []
    assert launched.dropped == ["options of the script itself: it is read as started without any"]


def test_a_loop_over_an_array_is_none_over_options(tmp_path: Path) -> None:
    text = (
        "i=0\nwhile [ $i -lt ${#ALL[@]} ]; do\n  LR=1\n  i=$((i + 1))\ndone\npython x.py --lr $LR\n"
    )
    (tmp_path / "run.sh").write_text(text)
    assert read(tmp_path / "run.sh").arguments == ["--lr", "1"]


def test_arithmetic_of_the_program_expr_is_computed(tmp_path: Path) -> None:
    text = "N=4\npython x.py --a $(expr 16 / $N) --b $(expr $N \\* 2 + 1) --c $(expr length abc)\n"
    (tmp_path / "run.sh").write_text(text)
    launched = read(tmp_path / "run.sh")
    assert launched.arguments == ["--a", "4", "--b", "9"]
    assert launched.left_out == ["--c $(expr length abc)"]


@pytest.mark.parametrize(
    ("test", "arguments"),
    [
        ("-z ${MP_VP}", ["--none"]),
        ('-z "$MP_VP"', ["--none"]),
        ("-z $SLURM_JOB_ID", ["--none", "--some"]),  # only a shell knows: both
        ("-z $1", ["--none", "--some"]),
    ],
)
def test_a_variable_without_a_value_is_empty(
    tmp_path: Path, test: str, arguments: list[str]
) -> None:
    text = f"if [ {test} ]; then A=(--none); else A+=(--some); fi\npython x.py ${{A[@]}}\n"
    (tmp_path / "run.sh").write_text(text)
    assert read(tmp_path / "run.sh").arguments == arguments


SUBMITTED = """\
ARGS=(--num-layers 4 --bf16)
COMMAND="cd /opt/m; python /opt/m/train.py ${ARGS[@]}"
%s
#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
srun --mpi=pmix bash -x -c "${COMMAND}" 2>&1 | tee \\${SLURM_JOB_ID}.log
EOF
echo submitted
"""


@pytest.mark.parametrize("line", ["sbatch <<EOF", "sbatch --hold <<'EOF'", "srun -n1 bash <<EOF"])
def test_a_script_that_is_submitted_from_a_here_document_is_read(tmp_path: Path, line: str) -> None:
    (tmp_path / "run.sh").write_text(SUBMITTED % line)
    launched = read(tmp_path / "run.sh")
    assert (launched.entry, launched.arguments) == (
        "/opt/m/train.py",
        ["--num-layers", "4", "--bf16"],
    )
    assert (launched.nodes, launched.ranks, launched.folder) == (4, 32, "/opt/m")
    assert [*launched.launcher][:2] == ["srun", "--mpi=pmix"]


def test_other_here_documents_start_nothing(tmp_path: Path) -> None:
    text = "cat > job.sh <<EOF\npython other.py --never 1 --more 2\nEOF\npython train.py --lr 1\n"
    (tmp_path / "run.sh").write_text(text)
    assert read(tmp_path / "run.sh").entry == "train.py"


def test_a_mount_that_is_no_path_is_told(tmp_path: Path) -> None:
    mounts = '--container-mounts "/data:/data,<DIRECTORIES>"'
    text = f"srun --container-image=/i.sqsh {mounts} python x.py --lr 1\n"
    (tmp_path / "run.sh").write_text(text)
    part = site_part(read(tmp_path / "run.sh"), "dgx_h100")
    assert part.container == {"image": "/i.sqsh", "mounts": ["/data"]}
    assert part.left_out == ["the container's mount <DIRECTORIES>, which is no path"]
