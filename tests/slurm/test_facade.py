"""What `import slurm` costs, and what it never brings along."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys

import slurm


def modules_after(code: str) -> set[str]:
    """Modules that a fresh interpreter has imported after these statements."""
    program = f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=250, check=True
    )
    return set(json.loads(done.stdout))


def test_importing_slurm_imports_none_of_its_modules() -> None:
    ours = {name for name in modules_after("import slurm") if name.startswith("slurm.")}
    assert ours == set()


def test_all_of_slurm_imports_neither_the_trainer_nor_the_search() -> None:
    modules = modules_after("import slurm; [getattr(slurm, name) for name in slurm.__all__]")
    packages = {name.partition(".")[0] for name in modules}
    above = {"torch", "deephyper", "numpy", "pandas", "trainer", "search_spaces", "workflows"}
    assert packages & above == set()
    assert not any(name.startswith("meshtune.testing") for name in modules)


def test_the_fork_server_pays_for_no_yaml_and_no_pydantic() -> None:
    modules = modules_after("import slurm.local.server")
    assert modules & {"pydantic", "yaml", "slurm.srun.site"} == set()


def test_its_example_is_true() -> None:
    assert doctest.testmod(slurm).failed == 0
