"""The functions of ``import meshtune``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import Closed, Ended, Event, Opened, Run, Started
from foundation.arguments import checked_columns, checked_path, checked_text, checked_whole, refused

if TYPE_CHECKING:
    import pandas as pd

    from analysis import Drawn, RunFolder, Sensitivity
    from search_spaces import SearchSpace
    from slurm import Launcher
    from workflows import Study

__all__ = [
    "Closed", "Ended", "Event", "Opened", "Run", "Started",
    "load", "load_space", "plot", "predict", "report", "search", "sensitivity",
]  # fmt: skip

Listener = Callable[[Event, Run], None]


_NARROW = ("trial", "objective", "kind", "elapsed_s", "node_hours")  # columns without ``wide``
_PRICED = "a prediction needs the space's `model`, its cluster's facts and the degrees it searches"


def load_space(reference: str | Path, *, cluster: str | Path | None = None) -> SearchSpace:
    """Read a search space, for its own cluster or another.

    >>> import meshtune
    >>> space = meshtune.load_space("tiny_cpu")
    >>> space.name, space.raw_size
    ('tiny_cpu', 3240)

    Args:
        reference: a file, or the name of a shipped space.
        cluster: in place of the space's own: a file, or the name of a shipped cluster.

    Raises:
        ArgumentError: if it is neither.
        SpaceError: that names the file, line, key, value and remedy.
    """
    from search_spaces import load_space as load

    if not isinstance(reference, (str, Path)):
        raise refused("reference", reference, "a space file, or a shipped space's name")
    if not isinstance(cluster, (str, Path, type(None))):
        raise refused("cluster", cluster, "a cluster's file, or a shipped cluster's name")
    return load(str(reference), cluster=None if cluster is None else str(cluster))


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
    such as Ctrl-C, ends the running trials; a resumed search repeats them.

    Args:
        space: or anything that :func:`load_space` takes.
        launcher: starts the trials' processes: ``local``, ``srun``, ``mpiexec``, ``simulate``, an
            installed one, or an object. Default: srun inside a Slurm allocation, else local.
        trials: budget, in place of the space's own.
        run_dir: default: ``runs/NAME``, NAME being the space's.
        policy: what chooses the configurations; see ``meshtune search --help``.
        seed: default: 0, or the run's own.
        simulate: settings of the simulated cluster, ``KEY=VALUE,...``.
        listen: called with each event (``meshtune.Opened``, ``Started``, ``Ended``, ``Closed``)
            and the run so far.

    Raises:
        SpaceError, RegistryError, LaunchError, LauncherError: if the search cannot start.
        ArgumentError: for an unusable argument, before anything is written.
    """
    from workflows import Search

    space = _searched(space, trials)
    folder = _run_folder(space, launcher, run_dir)
    seed = None if seed is None else checked_whole("seed", seed, 0)
    checked_text("policy", policy)
    tell = _listener(listen)
    with _opened(launcher, space, folder, simulate) as opened:
        return Search(space, folder, opened, seed, policy).run(tell)


def _searched(space: SearchSpace | str | Path, trials: int | None) -> SearchSpace:
    """The space with the budget of trials, which the run's folder then keeps."""
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
    """A driver's listener that passes on only events."""
    if listen is not None and not callable(listen):
        raise refused("listen", listen, "a function of an event and a run")

    def tell(event: object, driver: Any) -> None:
        if listen is not None and isinstance(event, Event):
            listen(event, driver.state)

    return tell


def _opened(
    launcher: Launcher | str | None, space: SearchSpace, folder: RunFolder, simulate: str
) -> AbstractContextManager[Launcher]:
    """A context with the launcher, closed at its end if it was made here."""
    from workflows import launcher_for

    checked_text("simulate", simulate, "settings KEY=VALUE,...")
    if launcher is None or isinstance(launcher, str):
        return closing(launcher_for(space, folder, launcher, simulate))
    return nullcontext(launcher)


def predict(
    space: SearchSpace | str | Path, top: int = 10, *, cluster: str | Path | None = None
) -> pd.DataFrame:
    """The configurations that the cost model expects to be best, before anything runs.

    >>> import meshtune
    >>> frame = meshtune.predict("gpt_22b_frontier", top=3)
    >>> list(frame.columns)[-8:-3]
    ['step_time_s', 'step_time_low_s', 'step_time_high_s', 'tokens_per_second', 'tflops_per_gpu']

    Args:
        space: or anything that :func:`load_space` takes.
        top: how many, the best first.
        cluster: in place of the space's own, for a space's file or name.

    Returns:
        A row for each: its parameters, the predicted step time with its 95 % interval, throughput,
        ``memory_bytes`` of the fullest GPU, of which torch's allocator reserves ``reserved_bytes``,
        and ``fits``, the probability that the GPU has this memory.

    Raises:
        ArgumentError: for an unusable argument.
        NotPricedError, MissingFactError: if the cost model cannot price the space.
    """
    import pandas as pd

    from analysis import MissingFactError, NotPricedError, Pricing, Ranking
    from workflows import space_of

    top = checked_whole("top", top, 1)
    if cluster is not None:
        if not isinstance(space, (str, Path)):
            raise refused("space", space, "a space file or name, beside a cluster")
        space = load_space(space, cluster=cluster)
    space = space_of(space)
    try:
        ranking = Ranking.of(Pricing(space), top)
    except (NotPricedError, MissingFactError) as error:
        raise type(error)(f"{space.file}: {error}; {_PRICED}") from None
    return pd.DataFrame(ranking.configs).assign(**ranking.prediction.columns())


def load(run: Run | Study | str | Path, *, wide: bool = False) -> pd.DataFrame:
    """A run as a table: one row per trial that has ended.

    >>> import meshtune
    >>> frame = meshtune.load(run)
    >>> frame[["trial", "p:tp", "objective", "kind"]].iloc[0].to_dict()["kind"]
    'ok'

    Args:
        run: what :func:`search` returned, a study, or a run's folder.
        wide: also predictions, times, nodes and ``m:KEY`` per metric of its result: see
            ``analysis.load``.

    Returns:
        ``trial``, ``p:NAME`` per parameter, ``objective`` (NaN unless it succeeded), ``kind`` (how
        it ended), ``elapsed_s`` and ``node_hours``.
    """
    from analysis import load as read

    frame = read(_folder(run))
    if wide:
        return frame
    return frame[[name for name in frame if str(name).startswith("p:") or name in _NARROW]]


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
    >>> run = meshtune.search(space, launcher="simulate", trials=16, run_dir=other_folder)
    >>> found = meshtune.sensitivity(meshtune.load(run))    # a forest, explained by SHAP
    >>> meshtune.plot(found).savefig(picture)

    ``objective="fails"`` explains which trials fail, by a classifier over all trials of a run.
    Any other table works, too:

    >>> import pandas as pd
    >>> table = pd.DataFrame({"tp": [1, 2, 4, 8] * 4, "pp": [1] * 8 + [2] * 8})
    >>> table["speed"] = 10.0 / table["tp"] + table["pp"]
    >>> list(meshtune.sensitivity(table, objective="speed").mean_abs.index)
    ['tp', 'pp']

    Args:
        frame: a row for each trial; those whose objective is not a finite number are left out.
        objective: the column to explain.
        parameters: the columns that explain it. Default: all ``p:NAME`` (as in tables of
            :func:`load`); if there are none, all others.
        seed: of the forests and the bootstrap.

    Raises:
        NotEnough: for too few rows, or if nothing varied.
        ArgumentError: for an unusable argument, such as a column that the table lacks.
    """
    import pandas as pd

    from analysis import failure_sensitivity, objective_sensitivity

    if not isinstance(frame, pd.DataFrame):
        raise refused("frame", frame, "a DataFrame, such as meshtune.load gives")
    seed = checked_whole("seed", seed, 0)
    own = [str(name) for name in frame if str(name).startswith("p:")]
    if objective == "fails" and "fails" not in frame:
        checked_columns("frame", ["trial", "kind"], frame)
        parameters = checked_columns("parameters", parameters or own, frame)
        return failure_sensitivity(frame[["trial", "kind", *parameters]], seed)
    checked_columns("objective", [objective], frame)
    if parameters is None:
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
    if any(str(name).startswith("p:") for name in frame):  # of a run; else they mean anything
        table = table.assign(**{key: frame[key] for key in ("trial", "kind") if key in frame})
    for name in parameters:
        table[f"p:{str(name).removeprefix('p:')}"] = frame[name]
    return table


def plot(
    what: Run | Study | Sensitivity | str | Path, name: str = "", width: float = 6.9, **choices: str
) -> Drawn:
    """A figure for a notebook or a paper, text of 8 pt: ``.savefig("figure.pdf")``, or ``.svg``.

    >>> import meshtune
    >>> meshtune.plot(run, width=3.3).savefig(picture)
    >>> meshtune.plot(run, "heat", across="mbs", up="pp").savefig(picture)

    Args:
        what: a run or its folder; or a result of :func:`sensitivity`: mean |SHAP| per parameter
            as bars (Figure 10 of Dash et al. 2023), and beside it the effect of each value.
        name: for a run, any figure of its report, as ``run.plot`` has it by name. Default:
            ``history``, the objective, the best so far and the failures (Figure 9). For a
            sensitivity, the unit of its effects, for the axes.
        width: inches; 3.3 is a column, 6.9 a page.
        choices: the options that the report shows beside the figure, such as ``by="time"``.

    Raises ArgumentError for an unusable argument.
    """
    from analysis import Drawn, Sensitivity

    checked_text("name", name)
    if isinstance(what, Sensitivity):
        return Drawn.of_what(what, name, width, **choices)
    if not isinstance(getattr(what, "directory", what), (str, Path)):
        raise refused("what", what, "a run, its folder, or what meshtune.sensitivity gives")
    return Drawn.of_what(_folder(what), name, width, **choices)


def _folder(run: Any) -> Path:
    """The folder of a run or a study, or a path to one."""
    return checked_path("run", getattr(run, "directory", run))
