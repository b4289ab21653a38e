"""The notebook is stored without outputs and runs over a run folder."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

import analysis

NOTEBOOK = Path(analysis.__file__).parent / "notebooks" / "sensitivity.ipynb"


def outputs(notebook) -> list:
    return [o for cell in notebook.cells for o in cell.get("outputs", [])]


def test_the_notebook_is_stored_without_outputs():
    notebook = nbformat.read(NOTEBOOK, 4)
    nbformat.validate(notebook)
    assert outputs(notebook) == []


def test_the_notebook_draws_its_figures_from_a_run_folder(build, monkeypatch):
    folder = build(60)
    monkeypatch.setenv("MESHTUNE_RUN", str(folder))
    notebook = nbformat.read(NOTEBOOK, 4)
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    images = [o for o in outputs(notebook) if "image/png" in o.get("data", {})]
    assert len(images) == 3
    text = "".join(o.get("text", "") for o in outputs(notebook))
    assert "table4: 60 trials ended" in text and "out-of-bag R²" in text
