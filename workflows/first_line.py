"""The line that starts a trial, without an allocation to start it in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from analysis import RunFolder
from search_spaces import SearchSpace
from slurm import BatchJob, Site
from workflows.search.session import NO_IDENTITY
from workflows.search.trials import TrialFactory
from workflows.try_out import choose


def started_by(space: SearchSpace, site: Site, folder: RunFolder | None = None) -> Iterator[str]:
    """The srun line of the configuration that is expected to be best; none for a plain site.

    Raises LauncherError if the site does not start the space's container.
    """
    container = space.trainer.container
    if container is None and site.reference == "generic":
        return
    if container is not None and site.containers is None and site.reference == "generic":
        yield f"trials run in {container.image}; --site shows the line by which they do"
        return
    folder = folder or RunFolder(Path("runs") / space.name)
    config = choose(space, {}, space.widths[-1])
    spec = TrialFactory(space, folder, f"meshtune-{NO_IDENTITY}", None).spec(1, 1, config)
    cores = space.cluster.cpus_per_node if space.cluster is not None else None
    if container is not None and (advice := site.advice(container)):
        yield f"beforehand: {advice}"
    yield f"a trial: {BatchJob.trial_line(spec, site, cores or spec.ranks_per_node)}"
