"""What ``analysis`` exports: all of it is there, and importing it costs nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import analysis

SLOW = {"numpy", "pandas", "scipy", "matplotlib", "shap", "sklearn"}


def test_every_exported_name_is_there() -> None:
    stub = ast.parse(Path(analysis.__file__).with_name("__init__.pyi").read_text())
    listed = [a.name for n in stub.body if isinstance(n, ast.ImportFrom) for a in n.names]
    assert sorted(listed) == sorted(analysis.__all__)
    for name in listed:
        assert getattr(analysis, name) is not None


def test_no_exported_name_is_hidden_by_a_module_of_its_name() -> None:
    folder = Path(analysis.__file__).parent
    modules = {path.stem for path in folder.iterdir() if path.suffix in ("", ".py")}
    assert not modules & set(analysis.__all__)


def test_importing_analysis_imports_nothing_slow() -> None:
    code = f"import sys, analysis; print(*{SLOW} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
