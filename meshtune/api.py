"""The functions of ``import meshtune``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import Closed, Ended, Event, Opened, Run, Started
from foundation.arguments import (
    checked_columns,
    checked_path,
    checked_seed,
    checked_text,
    checked_whole,
    refused,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis import RunFolder, Sensitivity
    from search_spaces import SearchSpace
    from slurm import Launcher
    from workflows import Study

__all__ = [
    "Closed", "Ended", "Event", "Opened", "Run", "Started",
    "load", "load_space", "plot_sensitivity", "predict", "report", "search", "sensitivity",
]  # fmt: skip

Listener = Callable[[Event, Run], None]
_PRICED = "a prediction needs the space's `model`, its cluster's facts and the degrees it searches"


def load_space(reference: str | Path) -> SearchSpace:
    """Read a search space.

    >>> import meshtune
    >>> space = meshtune.load_space("tiny_cpu")
    >>> space.name, space.raw_size
    ('tiny_cpu', 3240)

    Args:
        reference: a file, or the name of a shipped space.

    Raises:
        ArgumentError: if it is neither.
        SpaceError: that names the file, line, key, value and remedy.
    """
    from search_spaces import load_space as load

    if not isinstance(reference, (str, Path)):
        raise refused("reference", reference, "a space file, or a shipped space's name")
    return load(str(reference))


def search(
    space: SearchSpace | str | Path,
    *,
    launcher: Launcher | str | None = None,
    trials: int | None = None,
    run_dir: str | Path | None = None,
    policy: str = "meshtune",
    seed: int | None = None,
    simulate: str = "",
    listen: Listener | None = None,
) -> Run:
    """Start or resume a search, and return its run.

    >>> import meshtune
    >>> space = meshtune.load_space("gpt_22b_frontier")
    >>> run = meshtune.search(space, launcher="simulate", trials=8, run_dir=folder)
    >>> run.best.config["tp"], len(run.trials)
    (1, 8)

    Ended trials never run again: with more trials the same call resumes the search. An exception,
    such as Ctrl-C, ends the running trials, which then run again.

    Args:
        space: or anything that :func:`load_space` takes.
        launcher: gives trials their processes: ``local``, ``srun``, ``mpiexec``, ``simulate``, an
            installed one, or an object. Default: srun inside a Slurm allocation, else local.
        trials: budget, in place of the space's own.
        run_dir: default: ``runs/NAME``, NAME being the space's.
        policy: what chooses the configurations; see ``meshtune search --help``.
        seed: default: 0, or the run's own.
        simulate: settings of the simulated cluster, ``KEY=VALUE,...``.
        listen: called with each event (``meshtune.Opened``, ``Started``, ``Ended``, ``Closed``)
            and the run so far.

    Raises:
        SpaceError, RegistryError, LaunchError, LauncherError: if it cannot be searched so.
        ArgumentError: for an unusable argument; nothing is made then.
    """
    from workflows import Search

    space = _searched(space, trials)
    folder = _run_folder(space, launcher, run_dir)
    seed = None if seed is None else checked_seed(seed)
    checked_text("policy", policy)
    tell = _listener(listen)
    with _opened(launcher, space, folder, simulate) as opened:
        return Search(space, folder, opened, seed, policy).run(tell)


def _searched(space: SearchSpace | str | Path, trials: int | None) -> SearchSpace:
    """The space with the budget, which the run's folder keeps."""
    from workflows import space_of

    space = space_of(space)
    if trials is None:
        return space
    trials = checked_whole("trials", trials, 1)
    return replace(space, budget=space.budget.model_copy(update={"trials": trials}))


def _run_folder(space: SearchSpace, launcher: Any, run_dir: str | Path | None) -> RunFolder:
    from analysis import RunFolder
    from slurm import Launcher

    if not isinstance(launcher, (Launcher, str, type(None))):
        raise refused("launcher", launcher, "a launcher, or its name")
    if run_dir is not None:
        return RunFolder(checked_path("run_dir", run_dir))
    simulated = launcher.simulated if isinstance(launcher, Launcher) else launcher == "simulate"
    return RunFolder(Path("runs") / f"{space.name}{'-simulated' * simulated}")


def _listener(listen: Listener | None) -> Callable[[object, Any], None]:
    """A driver's listener that passes events on, and no ticks and notices."""
    if listen is not None and not callable(listen):
        raise refused("listen", listen, "a function of an event and a run")

    def tell(event: object, driver: Any) -> None:
        if listen is not None and isinstance(event, Event):
            listen(event, driver.state)

    return tell


def _opened(
    launcher: Launcher | str | None, space: SearchSpace, folder: RunFolder, simulate: str
) -> AbstractContextManager[Launcher]:
    """The launcher; one that is made here is closed at the end."""
    from workflows import launcher_for

    checked_text("simulate", simulate, "settings KEY=VALUE,...")
    if launcher is None or isinstance(launcher, str):
        return closing(launcher_for(space, folder, launcher, simulate))
    return nullcontext(launcher)


def predict(space: SearchSpace | str | Path, top: int = 10) -> pd.DataFrame:
    """The configurations that the cost model expects to be best, before anything runs.

    >>> import meshtune
    >>> frame = meshtune.predict("gpt_22b_frontier", top=3)
    >>> list(frame.columns)[-8:-3]
    ['step_time_s', 'step_time_low_s', 'step_time_high_s', 'tokens_per_second', 'tflops_per_gpu']

    Args:
        space: or anything that :func:`load_space` takes.
        top: how many, the best first.

    Returns:
        A row for each: its parameters, the predicted step time with its 95 % interval, throughput,
        ``memory_bytes`` of the fullest GPU, of which torch's allocator reserves ``reserved_bytes``,
        and ``fits``, the probability that they are there.

    Raises:
        ArgumentError: for an unusable argument.
        NotPricedError, MissingFactError: if the cost model cannot price the space.
    """
    import pandas as pd

    from analysis import MissingFactError, NotPricedError, Pricing, Ranking
    from workflows import space_of

    top = checked_whole("top", top, 1)
    space = space_of(space)
    try:
        ranking = Ranking.of(Pricing(space), top)
    except (NotPricedError, MissingFactError) as error:
        raise type(error)(f"{space.file}: {error}; {_PRICED}") from None
    return pd.DataFrame(ranking.configs).assign(**ranking.prediction.columns())


def load(run: Run | Study | str | Path) -> pd.DataFrame:
    """A run as a table: one row per trial that has ended.

    >>> import meshtune
    >>> frame = meshtune.load(run)
    >>> frame[["trial", "p:tp", "objective", "kind"]].iloc[0].to_dict()["kind"]
    'ok'

    Args:
        run: what :func:`search` returned, a study, or a run's folder.

    Returns:
        ``trial``, ``p:NAME`` per parameter, ``objective`` (NaN unless it succeeded), ``kind`` (how
        it ended), ``m:KEY`` per metric of its result, and more: see ``analysis.load``.
    """
    from analysis import load as read

    return read(_folder(run))


def report(run: Run | Study | str | Path) -> Path:
    """Write a run's report, and return its path.

    >>> import meshtune
    >>> meshtune.report(run).name
    'index.html'
    """
    from analysis import write_report

    return Path(write_report(_folder(run)))


def sensitivity(
    frame: pd.DataFrame,
    objective: str = "objective",
    parameters: Sequence[str] | None = None,
    seed: int = 0,
) -> Sensitivity:
    """SHAP values of a forest over the trials: which parameters drive an objective.

    Figure 10 of Dash et al. 2023, for your own search:

    >>> import meshtune
    >>> space = meshtune.load_space("gpt_22b_frontier")     # what may be searched
    >>> run = meshtune.search(space, launcher="simulate", trials=24, run_dir=other_folder)
    >>> found = meshtune.sensitivity(meshtune.load(run))    # a forest, explained by SHAP
    >>> meshtune.plot_sensitivity(found).savefig(picture)

    Any other table works, too:

    >>> import pandas as pd
    >>> table = pd.DataFrame({"tp": [1, 2, 4, 8] * 4, "pp": [1] * 8 + [2] * 8})
    >>> table["speed"] = 10.0 / table["tp"] + table["pp"]
    >>> list(meshtune.sensitivity(table, objective="speed").mean_abs.index)
    ['tp', 'pp']

    Args:
        frame: a row for each trial; those whose objective is not a finite number are left out.
        objective: the column to explain.
        parameters: the columns that explain it. Default: ``p:NAME`` where there are such (as
            :func:`load` has), else all others.
        seed: of the forests and the bootstrap.

    Raises:
        NotEnough: for too few rows, or where nothing varied.
        ArgumentError: for an unusable argument, such as a column that the table lacks.
    """
    import pandas as pd

    from analysis import objective_sensitivity

    if not isinstance(frame, pd.DataFrame):
        raise refused("frame", frame, "a DataFrame, such as meshtune.load gives")
    seed = checked_seed(seed)
    checked_columns("objective", [objective], frame)
    if parameters is None:
        own = [str(name) for name in frame if str(name).startswith("p:")]
        parameters = own or [*frame.columns.drop(objective)]
    parameters = checked_columns("parameters", parameters, frame)
    return objective_sensitivity(_trials(frame, objective, parameters), seed)


def _trials(frame: pd.DataFrame, objective: str, parameters: Sequence[Any]) -> pd.DataFrame:
    """A table of trials in the form of :func:`load`."""
    import numpy as np
    import pandas as pd

    values = pd.to_numeric(frame[objective], errors="coerce").astype(float)
    ended = np.where(np.isfinite(values), "ok", "failed")
    table = pd.DataFrame(
        {"trial": np.arange(1, len(frame) + 1), "kind": ended, "objective": values},
        index=frame.index,
    )
    if any(str(name).startswith("p:") for name in frame):  # a run's; elsewhere they mean anything
        table = table.assign(**{key: frame[key] for key in ("trial", "kind") if key in frame})
    for name in parameters:
        table[f"p:{str(name).removeprefix('p:')}"] = frame[name]
    return table


def plot_sensitivity(found: Sensitivity, effect: str = "effect on the objective") -> Figure:
    """Mean |SHAP| per parameter as bars, and every trial's SHAP value beside it.

    Args:
        found: result of :func:`sensitivity`.
        effect: what the SHAP values are, with the objective's unit, for the axes.

    Raises:
        ArgumentError: for anything else.
    """
    from analysis import Sensitivity, sensitivity_figure

    if not isinstance(found, Sensitivity):
        raise refused("found", found, "what meshtune.sensitivity gives")
    checked_text("effect", effect)
    return sensitivity_figure(found, effect)


def _folder(run: Any) -> Path:
    """The folder of a run or a study, or a path to one."""
    return checked_path("run", getattr(run, "directory", run))
