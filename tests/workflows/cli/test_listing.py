"""What can be named is listed."""

from __future__ import annotations

import json
from importlib.metadata import version

import pytest

from workflows.cli.main import main

SOME = {
    "spaces": "gpt_175b_frontier",
    "models": "llama_8b",
    "clusters": "dgx_h100",
    "adapters": "megatron-lm",
    "frameworks": "nanotron",
    "sites": "perlmutter",
    "launchers": "mpiexec",
    "policies": "cost-model",
}


@pytest.mark.parametrize("kind", SOME)
def test_what_there_is_to_name_is_listed(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", kind]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert SOME[kind] in names
    assert main(["list", kind, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["names"]
    assert [*listed] == names
    assert all(listed.values())


def test_without_a_kind_the_names_of_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert {kind: SOME[kind] in line for kind, line in lines.items()} == dict.fromkeys(SOME, True)
    assert main(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["names"]
    assert [kind for kind, name in SOME.items() if not listed[kind][name]] == []


def test_every_name_is_told_on_one_short_line(capsys: pytest.CaptureFixture[str]) -> None:
    for kind in ("adapters", "frameworks", "policies", "launchers"):
        assert main(["list", kind]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert all(len(line) <= 120 and "..." not in line for line in lines), kind
        assert len({line[30:] for line in lines}) == len(lines)


def test_no_command_at_all_shows_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "search" in capsys.readouterr().out


def test_what_cannot_be_listed_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["list", "modles"])
    assert end.value.code == 2
    assert "spaces" in capsys.readouterr().err


def test_the_version_is_the_distributions(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out.split() == ["meshtune", version("meshtune")]
