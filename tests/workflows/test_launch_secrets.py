"""Secrets in launch scripts are in no file that ``init`` writes, and in no line that it prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from search_spaces import load_space
from slurm import Site
from workflows.cli.main import main
from workflows.launch_script import read

SCRIPT = """\
#!/bin/bash
srun -N 2 --ntasks-per-node=8 --cpu-bind=none \\
  python /opt/megatron/pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\
  --num-attention-heads 32 --seq-length 2048 --vocab-size 51200 --bf16 \\
  --micro-batch-size 1 --global-batch-size 64
"""


def init(script: str) -> None:
    Path("launch.sh").write_text(script)
    asked = ["--adapter", "megatron-lm", "--cluster", "dgx_h100", "--args", "launch.sh"]
    assert main(["init", "mine.yaml", *asked]) == 0


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_secret_is_not_copied_into_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    kept = "export TOKENIZERS_PARALLELISM=false MAX_TOKEN=4096 WANDB_MODE=offline\n"
    later = "export HF_TOKEN=$(cat ~/.hf_token)\n"
    init(f"export WANDB_API_KEY=0123456789abcdef0123\n{kept}{later}{SCRIPT}")
    told = "left out: the secret WANDB_API_KEY: export it in the shell that searches\n"
    assert told in capsys.readouterr().out
    assert "0123456789abcdef" not in Path("mine.yaml").read_text()
    assert {"TOKENIZERS_PARALLELISM", "MAX_TOKEN", "WANDB_MODE"} < {
        *load_space("mine.yaml").trainer.env
    }
    assert any("export HF_TOKEN=" in line for line in Site.load("mine-site.yaml").setup)


@pytest.mark.parametrize(
    "name_and_value",
    [
        "WANDB_API_KEY=0123456789abcdef0123",
        "PASSWORD=hunter2",
        "DB_PASSWORD='pa$$word'",
        "AWS_SECRET_ACCESS_KEY=/bPxRfiCYEXAMPLEKEY",
        "GITHUB_PAT=ghp_abcdefghijklmnopqrstuvwxyz0123",
        "hf_token=hf_abcdefghijklmnopqrstuv",
        "DB_URL=postgres://user:pw@host/db",
    ],
)
def test_a_secret_is_neither_passed_on_nor_told(
    here: Path, capsys: pytest.CaptureFixture[str], name_and_value: str
) -> None:
    name, _, value = name_and_value.partition("=")
    value = value.strip("'")
    script = SCRIPT.replace("srun -N", f"srun --export=ALL,{name_and_value} -N")
    more = f"log in ${name}\nlog in {value!r}\n".replace('"', "'")
    init(f"export {name_and_value}\n{more}{script.rstrip()} --my-key ${name} --yes\n")
    said = capsys.readouterr().out
    assert f"the secret {name}: export it in the shell that searches" in said
    for text in (said, *(Path(file).read_text() for file in ("mine.yaml", "mine-site.yaml"))):
        assert value not in text
    assert f"left out: log in ${{{name}}}\n" in said and f"--export=ALL,{name}\n" in said
    assert f"--my-key ${{{name}}}" in said and "--yes" in Path("mine.yaml").read_text()


@pytest.mark.parametrize(
    "option",
    [
        "--hf_token {}",
        "--wandb-key {}",
        "--hub-token={}",
        "--auth hf_ab{}",
        "--tracking-uri http://me:{}@host/x",
    ],
)
def test_a_secret_option_is_neither_passed_on_nor_told(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    value = "abcdefghijklmnopqrstuvwxyzabcdefgh"
    init(f"wandb login {value}\n{SCRIPT.rstrip()} {option.format(value)} --yes\n")
    said = capsys.readouterr().out
    name = option.replace("=", " ").split()[0]
    assert f"left out: {name}" in said and "***: a secret; export it" in said
    assert "left out: wandb login ***\n" in said
    for text in (said, Path("mine.yaml").read_text(), Path("mine-site.yaml").read_text()):
        assert value not in text
    assert "--yes" in Path("mine.yaml").read_text()


TOKEN = "hf_abcdefghijklmnopqrstuvwxyzabcdefgh"


@pytest.mark.parametrize(
    ("before", "option", "told"),
    [
        ('export EXTRA="--hub_token TOKEN"', "", "the secret EXTRA: export it in"),
        ('export EXTRA="--hub_token TOKEN --a 1"', "$EXTRA", "--hub_token ***: a secret"),
        ("export PATH=$(x --token TOKEN)", "", "the secret PATH: export it in"),
        ("source env.sh --token TOKEN", "", "source env.sh --token ***"),
        ("source env.sh '--more TOKEN'", "", "source env.sh ***"),
        ("curl -H 'Authorization: Bearer TOKEN' http://a", "", "curl -H *** http://a"),
        ("curl -H 'Authorization: Bearer abcdefghijklm' http://a", "", "curl -H *** http://a"),
        ("curl -u user:abcdefghijklm http://a", "", "curl -u *** http://a"),
        ("wandb login --relogin TOKEN", "", "wandb login --relogin ***"),
        ("", """--extra-json '{"api_key": "abcdefghijklm"}'""", "--extra-json ***: a secret"),
        ("", """--extra-json '{"k":"TOKEN"}'""", "--extra-json ***: a secret"),
        ("", "--header 'Authorization: Bearer TOKEN'", "--header ***: a secret"),
        ("", "--key " + "0123456789abcdef" * 2 + "01234567", "--key ***: a secret"),
    ],
)
def test_a_secret_within_a_value_is_in_no_file_and_not_told(
    before: str, option: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    init(re.sub(r"\bTOKEN\b", TOKEN, f"{before}\n{SCRIPT.rstrip()} {option} --yes\n"))
    said = capsys.readouterr().out
    assert f"left out: {told}" in said
    for text in (said, Path("mine.yaml").read_text(), Path("mine-site.yaml").read_text()):
        assert "abcdefghijklm" not in text and "0123456789abcdef" not in text
    assert "--yes" in Path("mine.yaml").read_text()


@pytest.mark.parametrize(
    "option",
    [
        "--eos-token end_of_sentence_marker_x",
        "--image_token [IMAGE_PLACEHOLDER]",
        "--placeholder_token [IMAGE_PLACEHOLDER]",
        '--more {"image_token":"IMAGE_PLACEHOLDER_X"}',
        "--ssh-login user@host.of.a.cluster",
        "--num-login 3333333333333333",
        "--reset-password 1",
        "--password-length 12345",
    ],
)
def test_an_option_with_a_secrets_name_alone_is_passed_on(here: Path, option: str) -> None:
    name, value = option.split()
    (here / "launch.sh").write_text(f"python train.py {name} '{value}'\n")
    assert read(here / "launch.sh").arguments == [name, value]


def test_an_option_that_only_names_a_token_is_passed_on(here: Path) -> None:
    words = ["--loss-per-token", "--use-distributed-optimizer", "--eos_token=<|end_of_text|>"]
    (here / "launch.sh").write_text(f"python train.py {' '.join(map(repr, words))}\n")
    assert read(here / "launch.sh").arguments == words


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZER_TOKEN", "/data/llama3/tokenizer.model"),
        ("BOS_TOKEN", "<|begin_of_text|>"),
        ("MASTER_URL", "https://host/a@b"),
    ],
)
def test_what_is_no_secret_is_passed_on(here: Path, name: str, value: str) -> None:
    (here / "launch.sh").write_text(f"{name}='{value}'\npython train.py --a ${name}\n")
    assert read(here / "launch.sh").arguments == ["--a", value]
