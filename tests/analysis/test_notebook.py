"""The notebooks are stored without outputs and run over a run's folder."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from nbclient import NotebookClient

import analysis
from analysis.run.folder import RunFolder
from analysis.run.results import ResultsFile
from search_spaces import load_space
from support.priced_run import priced_run
from support.run_book import RunBook

FOLDER = Path(analysis.__file__).parent / "notebooks"
NAMES = ("sensitivity", "own_plots", "cost_model", "compare")
TRIALS = 40


def write_run(folder: Path, slower: dict[str, float]) -> Path:
    """A run of the demo's space, its trials as fast as priced but for these factors."""
    space = load_space("tiny_cpu")
    book = RunBook(folder, space.objective.as_dict())
    RunFolder(folder).space_file.write_text(space.frozen())
    for number, trial in priced_run(space, TRIALS, slower).trials.items():
        book.propose(number, trial.config)
        book.start(number)
        book.t += 30
        if number % 8 == 5:
            book.end(number, "oom", message="out of memory")
        else:
            result = {**trial.result, "tokens_per_second": trial.objective}
            book.end(number, "ok", trial.objective, result=result)
    ResultsFile(RunFolder(folder)).write(book.read())
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    slower = {"sequence_parallel=True": 1.3, "sequence_parallel=False": 1.3}  # all
    return [
        write_run(folder / "a", slower),
        write_run(folder / "b", {**slower, "recompute=full": 1.5}),
    ]


@pytest.fixture
def given(runs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHTUNE_RUN", str(runs[0]))
    monkeypatch.setenv("MESHTUNE_RUNS", ":".join(map(str, runs)))
    monkeypatch.setenv("MPLBACKEND", "agg")


def read(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", 4)


def outputs(notebook: Any) -> list[Any]:
    return [o for cell in notebook.cells for o in cell.get("outputs", [])]


def executed(name: str) -> tuple[str, dict[str, Any]]:
    """What a notebook prints and the names that it leaves, by IPython in this process."""
    shell, said = InteractiveShell(), io.StringIO()
    with contextlib.redirect_stdout(said):
        for cell in read(name).cells:
            if cell.cell_type == "code":
                shell.run_cell(cell.source).raise_error()
    return said.getvalue(), shell.user_ns


def test_there_are_these_notebooks_and_no_other() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_stored_without_outputs(name: str) -> None:
    notebook = read(name)
    nbformat.validate(notebook)
    assert outputs(notebook) == []
    assert all(cell.get("execution_count") is None for cell in notebook.cells)


def test_the_figures_of_a_run_are_drawn_in_a_kernel_of_its_own(given: None) -> None:
    notebook = read("sensitivity")
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    assert sum("image/svg+xml" in o.get("data", {}) for o in outputs(notebook)) == 2
    text = "".join(o.get("text", "") for o in outputs(notebook))
    assert "35 successful trials, out-of-bag R²" in text
    assert "recompute" in outputs(notebook)[-1]["text"]  # of DeepHyper's columns


def test_a_search_whose_trials_nearly_all_failed_is_explained_by_its_failures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MESHTUNE_RUN", raising=False)  # the run that ships
    said, names = executed("sensitivity")
    assert names["trials"]["kind"].value_counts()["oom"] > 30
    assert said.index("out-of-bag accuracy") < said.index("3 successful trials so far")
    assert names["found"] is None


def test_plots_of_ones_own_come_from_the_frame(given: None) -> None:
    said, names = executed("own_plots")
    assert said.startswith("40 trials, 35 ok") and "p:tp" in said
    best = names["best_rows"]
    assert best["objective"].max() == names["trials"]["objective"].max()
    assert best["p:tp"].is_unique


def test_the_best_of_a_minimized_objective_is_the_lowest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = RunBook(tmp_path / "run", {"minimize": "step_time_s"})
    for number, (tp, seconds) in enumerate([(1, 4.0), (1, 3.0), (2, 5.0)]):
        book.run_one(number, {"tp": tp}, "ok", seconds)
    book.run_one(3, {"tp": 2}, "oom", None)
    book.close()
    monkeypatch.setenv("MESHTUNE_RUN", str(book.directory))
    monkeypatch.setenv("MESHTUNE_RUNS", f"{book.directory}:{book.directory}")
    monkeypatch.setenv("MPLBACKEND", "agg")
    _, names = executed("own_plots")
    assert list(names["best"]) == [4.0, 3.0, 3.0, 3.0]
    assert list(names["best_rows"]["objective"]) == [3.0, 5.0]
    said, names = executed("compare")
    assert names["found"]["run 1"]["best"] == 3.0 and "run 0: " in said


def test_a_space_of_ones_own_parameters_without_a_model_is_explained_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "{version: 1, trainer: {command: [train]}, parameters: {rows: [1, 2]}, "
        "objective: {maximize: speed}}"
    )
    book = RunBook(tmp_path / "run", {"maximize": "speed"})
    RunFolder(book.directory).space_file.write_text(load_space(file).frozen())
    for number in range(10):
        book.run_one(number, {"rows": 1 + number % 2}, "ok", 4.0 + number)
    ResultsFile(RunFolder(book.directory)).write(book.read())
    book.close()
    monkeypatch.setenv("MESHTUNE_RUN", str(book.directory))
    monkeypatch.setenv("MPLBACKEND", "agg")
    said, _ = executed("sensitivity")
    assert "10 successful trials" in said and "the space has no model" in said
    _, names = executed("own_plots")
    assert list(names["best_rows"]["objective"]) == [12.0, 13.0]


def test_the_cost_model_is_calibrated_by_half_of_the_trials(given: None) -> None:
    said, names = executed("cost_model")
    assert "after 17 trials" in said and "fits with probability" in said
    assert names["after"] < 0.05 < 0.2 < names["before"]
    assert sum(names["parts"].values()) > 0


def test_clusters_and_runs_are_compared(given: None) -> None:
    _, names = executed("compare")
    assert list(names["rows"]) == ["dgx_h100", "frontier"]
    fast, slow = (row["tokens/s per GPU"] for row in names["rows"].values())
    assert fast > 2 * slow > 0
    table = names["pd"].DataFrame(names["importance"])
    share = table.loc["recompute"] / table.sum()
    assert share["run 1"] > share["run 0"]
