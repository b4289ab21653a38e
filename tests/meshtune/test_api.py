"""``import meshtune`` in a script or a notebook."""

from __future__ import annotations

import doctest
import importlib
import io
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest

import meshtune
from analysis import NotEnough
from foundation.arguments import ArgumentError
from foundation.registry import RegistryError
from meshtune.own_packages import ROOT
from support.run_book import RunBook

GUIDE = ROOT / "docs" / "guide" / "python-api.md"


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the examples need and do not show."""
    place = tmp_path_factory.mktemp("examples")
    run = meshtune.search("gpt_22b_frontier", launcher="simulate", trials=8, run_dir=place / "run")
    return {
        "run": run,
        "folder": place / "folder",
        "other_folder": place / "other",
        "picture": place / "figure10.svg",
    }


@pytest.mark.parametrize("module", ["meshtune", "meshtune.api", "workflows.search.study"])
def test_the_examples_in_docstrings_are_true(module: str, names: dict[str, Any]) -> None:
    found = doctest.testmod(importlib.import_module(module), extraglobs=names)
    assert found.attempted and not found.failed


def test_the_examples_of_the_guide_are_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = doctest.testfile(str(GUIDE), module_relative=False)
    assert found.attempted and not found.failed


def test_importing_meshtune_imports_nothing_heavy() -> None:
    code = (
        "import sys, meshtune\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'pandas', 'deephyper', 'rich', 'yaml'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    assert "HEAVY []" in done.stdout, done.stderr


def test_a_listener_is_told_of_every_start_and_end_as_the_journal_has_them(tmp_path: Path) -> None:
    told: list[str] = []

    def listen(event: meshtune.Event, run: meshtune.Run) -> None:
        told.append(type(event).__name__)
        if isinstance(event, meshtune.Ended):
            assert run.trials[event.trial].attempts[-1].kind == event.kind

    run = meshtune.search(
        "gpt_22b_frontier",
        launcher="simulate",
        trials=3,
        policy="random",
        simulate="seed=1",
        run_dir=tmp_path / "run",
        listen=listen,
    )
    assert (told[0], told[-1]) == ("Opened", "Closed")
    attempts = sum(len(trial.attempts) for trial in run.trials.values())
    assert told.count("Started") == told.count("Ended") == attempts >= 3


def test_a_search_called_again_with_more_trials_goes_on(tmp_path: Path) -> None:
    for trials in (2, 4):
        run = meshtune.search(
            "gpt_22b_frontier",
            launcher="simulate",
            trials=trials,
            policy="random",
            run_dir=tmp_path / "run",
        )
    assert len(run.trials) == 4 and len(run.opened_t) == 2


def test_an_unknown_launcher_or_policy_is_an_error_that_leaves_nothing(tmp_path: Path) -> None:
    for wrong in ({"launcher": "slrm"}, {"launcher": "simulate", "policy": "guess"}):
        with pytest.raises(RegistryError, match="there are"):
            meshtune.search("gpt_22b_frontier", trials=1, run_dir=tmp_path / "run", **wrong)
    assert not (tmp_path / "run").exists()


def test_a_sensitivity_leaves_out_what_failed_and_takes_the_columns_it_is_told() -> None:
    import pandas as pd

    table = pd.DataFrame({"a": [1, 2, 3, 4] * 3, "b": [5, 6] * 6, "noise": range(12)})
    table["y"] = 2.0 * table["a"]
    table.loc[0, "y"] = float("nan")
    found = meshtune.sensitivity(table, "y", ["a", "b"])
    assert set(found.mean_abs.index) == {"a", "b"} and found.n == 11
    with pytest.raises(ValueError, match="objective='z': accepted columns of the table"):
        meshtune.sensitivity(table, "z")


def test_columns_named_trial_and_kind_of_any_table_are_not_taken_for_a_runs() -> None:
    import pandas as pd

    table = pd.DataFrame({"trial": list("abcd") * 3, "kind": ["fast"] * 12, "a": [1, 2, 3, 4] * 3})
    table["y"] = 2.0 * table["a"]
    assert meshtune.sensitivity(table, "y", ["a"]).n == 12


@pytest.mark.parametrize("trials", [0, -1, "8"])
def test_a_number_of_trials_below_one_is_an_error_that_leaves_nothing(
    tmp_path: Path, trials: Any
) -> None:
    with pytest.raises(ValueError, match=f"trials={trials!r}: accepted a whole number"):
        meshtune.search(
            "gpt_22b_frontier", launcher="simulate", trials=trials, run_dir=tmp_path / "run"
        )
    assert not (tmp_path / "run").exists()


def test_a_table_is_small_unless_asked_and_whole_numbers_stay_whole(tmp_path: Path) -> None:
    book = RunBook(tmp_path / "run")
    book.run_one(1, {"tp": 1, "vpp": None}, "ok", 2.0)
    book.run_one(2, {"tp": 2, "vpp": 4}, "oom", None)
    book.close()
    small, wide = (meshtune.load(tmp_path / "run", wide=wide) for wide in (False, True))
    assert list(small) == [
        "trial", "p:tp", "p:vpp", "objective", "kind", "elapsed_s", "node_hours"
    ]  # fmt: skip
    assert set(small) < set(wide) and "m:peak_memory_bytes" in wide and small.attrs == wide.attrs
    assert [str(small[name].dtype) for name in ("p:tp", "p:vpp")] == ["int64", "Int64"]
    assert small["p:vpp"].tolist()[1] == 4 and small["p:vpp"].isna().tolist() == [True, False]


def test_what_makes_trials_fail_is_asked_of_the_same_table(tmp_path: Path) -> None:
    book = RunBook(tmp_path / "run")
    for number in range(24):
        tp, mbs = 2 ** (number % 3), 1 + number % 4
        book.run_one(number, {"tp": tp, "mbs": mbs}, *(("oom", None) if tp == 1 else ("ok", 2.0)))
    book.close()
    frame = meshtune.load(tmp_path / "run")
    found = meshtune.sensitivity(frame, "fails")
    assert found.mean_abs.index[0] == "tp" and found.base_rate == pytest.approx(2 / 3)
    assert list(meshtune.sensitivity(frame, "fails", ["p:tp"]).mean_abs.index) == ["tp"]
    own = frame.rename(columns={"objective": "fails"})  # a column of this name is what it says
    with pytest.raises(NotEnough, match="same objective"):
        meshtune.sensitivity(own, "fails")


def test_a_space_is_priced_for_another_cluster() -> None:
    there = meshtune.load_space("gpt_22b_frontier", cluster="dgx_h100")
    assert there.cluster is not None and there.cluster.name == "dgx_h100"
    own, other = (meshtune.predict("gpt_22b_frontier", 1, cluster=c) for c in (None, "dgx_h100"))
    assert other["tokens_per_second"][0] > 2 * own["tokens_per_second"][0]
    assert meshtune.predict(there, 1).equals(other)
    with pytest.raises(ValueError, match=r"^space="):
        meshtune.predict(there, 1, cluster="frontier")


def test_notebooks_show_a_run_and_its_trials_as_tables(names: dict[str, Any]) -> None:
    run = names["run"]
    assert run.best is not None
    shown, trial = run._repr_html_(), run.best._repr_html_()
    assert f"trial {run.best.number}: {run.objectives_text(run.best)}" in shown
    failed = sum(not trial.ok for trial in run.ended)
    assert f"<td>{len(run.ended)}" in shown and (f"({failed} " in shown or not failed)
    assert "<th>tp</th><td>" in trial and "<td>ok</td>" in trial
    failed = replace(run.best, kind="oom", objective=None, message="\x1b[1m<b> of & out")
    assert "<td>oom: \\x1b[1m&lt;b&gt; of &amp; out</td>" in failed._repr_html_()
    assert meshtune.predict("gpt_22b_frontier", 1)._repr_html_().count("<tr") == 2


def test_figures_of_a_paper_have_its_width_and_text_of_8_points(
    names: dict[str, Any], tmp_path: Path
) -> None:
    for width in (3.3, 6.9):
        figure = meshtune.plot(names["run"], width=width, by="time")
        figure.savefig(tmp_path / "figure9.pdf")
        drawn = ElementTree.fromstring(figure._repr_svg_())
        assert drawn.get("width") == f"{width}in"
        units = float(str(drawn.get("viewBox")).split()[2])
        texts = [each for each in drawn if each.tag.endswith("text")]
        assert {each.get("font-size") for each in texts} == {"11px"}
        assert 72 * width * 11 / units == pytest.approx(8, abs=0.03)  # points
        words = {each.text for each in texts}
        assert words >= {"best so far", "Objective of every trial and the best so far"}
        points = [each.get("fill") for each in drawn if each.tag.endswith("circle")]
        assert points == ["rgb(0, 114, 178)"] * sum(trial.ok for trial in names["run"].ended)
    assert (tmp_path / "figure9.pdf").read_bytes().startswith(b"%PDF")


def test_a_figure_is_saved_as_svg_or_pdf_alone(names: dict[str, Any], tmp_path: Path) -> None:
    figure = meshtune.plot(names["run"])
    with pytest.raises(ArgumentError, match=r"^form='png': .*svg or pdf.* PNG .* page"):
        figure.encoded("png")
    for path in ("x.png", "x"):
        with pytest.raises(ArgumentError, match=r"^form="):
            figure.savefig(tmp_path / path)
    with pytest.raises(ArgumentError, match=r"^dpi=300: accepted a path alone"):
        figure.savefig(tmp_path / "x.pdf", dpi=300)
    with pytest.raises(ArgumentError, match=r"^path="):
        figure.savefig(io.BytesIO())
    assert not list(tmp_path.iterdir())


def test_effects_take_no_choices_and_their_unit_as_name() -> None:
    table = pd.DataFrame({"tp": [1, 2, 4, 8] * 4, "speed": range(16)})
    found = meshtune.sensitivity(table, "speed")
    with pytest.raises(ArgumentError, match=r"^choices='effect': .*`name`"):
        meshtune.plot(found, effect="s")
    with pytest.raises(ArgumentError, match=r"^choices='by': accepted none"):
        meshtune.plot(found, by="time")
    assert meshtune.plot(found, "s").unit == "s"


def test_a_run_has_its_figures_before_meshtune_is_imported(names: dict[str, Any]) -> None:
    code = (
        "import sys; from analysis import read_run; plots = read_run(sys.argv[1]).plot;"
        "assert 'meshtune.api' not in sys.modules; print(plots.history().name)"
    )
    command = [sys.executable, "-c", code, str(names["run"].directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "history\n"


def test_a_run_has_the_figures_of_its_page_by_name(names: dict[str, Any]) -> None:
    plots = names["run"].plot
    assert {"history", "heat", "roofline", "stacks", "effects"} <= set(dir(plots))
    drawn = plots.heat(across="pp", up="mbs")._repr_svg_()
    assert (
        "pp →, mbs ↑" in drawn
        and drawn == meshtune.plot(names["run"], "heat", across="pp", up="mbs")._repr_svg_()
    )
    for wrong in ({"across": "nothing"}, {"by": "time"}):
        with pytest.raises(ArgumentError, match="accepted"):
            plots.heat(**wrong)
    with pytest.raises(ArgumentError, match=r"name='front'.* has: history, .*heat"):
        plots.front()
    assert "front" not in dir(plots)
    with pytest.raises(ArgumentError, match=r"of='nothing': accepted (model|trials)"):
        plots.effects(of="nothing")
    for width in (0, -1, math.nan, "3"):
        with pytest.raises(ArgumentError, match=r"^width="):
            plots.history(width=width)
    with pytest.raises(ArgumentError, match=r"^by=.* a text"):
        plots.history(by=["time"])
    with pytest.raises(AttributeError, match="no figure nothing"):
        plots.nothing  # noqa: B018
