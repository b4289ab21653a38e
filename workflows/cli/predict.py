"""``meshtune check``, ``predict`` and ``schema``: a space before anything runs."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import analysis
import search_spaces
import slurm
from foundation.quantities import counted
from foundation.writing import write_atomically
from workflows.cli.arguments import UsageError
from workflows.cli.json_output import of_check, of_ranking, of_scaling, print_json, remarks
from workflows.cli.working import Working

DEFAULT_TOKENS = 1e12  # to train on
FRAMEWORK = "megatron-lm"  # the default
OF_A_MODEL = ("cluster", "framework", "global_batch_size", "seq_length")
LONGEST = "365d"  # timeout of trials, none of which is run
_FORMS = (".svg", ".pdf")


def check(arguments: Namespace) -> None:
    from workflows.estimate import Estimate
    from workflows.try_out import started_by

    space = search_spaces.load_space(arguments.space)
    with Working("counting valid configurations") as tell:
        report = search_spaces.check(space)
        tell("predicting their memory")
        expected = analysis.Ranking.likely_to_fit(report)
        cost = Estimate.of(space)
    if arguments.json:
        print_json("check", of_check(report, expected) | {"search": cost.as_json()})
        return
    print(report.text(), cost.text(), expected, sep="\n")
    for line in started_by(space, slurm.Site.load(arguments.site)):
        print(line)


def predict(arguments: Namespace) -> None:
    from workflows.estimate import Estimate

    _check_scaling(arguments)
    check_model_options(arguments)
    with remarks(arguments):
        space, config = _asked(arguments)
        pricing = _pricing(space, arguments.calibrate)
    try:
        with Working("pricing configurations"):
            if config:
                ranking = analysis.Ranking.of_one(pricing, config)
            else:
                ranking = analysis.Ranking.of(pricing, arguments.top)
        if arguments.scaling and ranking.configs:
            _scale(arguments, pricing, ranking.configs[0])
            return
    except analysis.MissingFactError as error:
        raise UsageError(
            f"{space.file}: {error}; state it in the cluster's record, or let "
            "`meshtune preflight` measure it"
        ) from error
    cost = Estimate.of(space) if config is None and arguments.space is not None else None
    if arguments.json:
        told = {"search": cost.as_json()} if cost else {}
        tokens_told = arguments.tokens or DEFAULT_TOKENS
        print_json("predict", of_ranking(ranking, arguments.explain, tokens_told) | told)
    else:
        if cost:
            print(cost.text())
        print(ranking.table(arguments.tokens))
        if arguments.explain and ranking.configs:
            print(f"\n{ranking.explanation(arguments.tokens or DEFAULT_TOKENS)}")


def _asked(arguments: Namespace) -> tuple[search_spaces.SearchSpace, dict[str, Any] | None]:
    """The space, and the configuration of a best.yaml if one is given."""
    if arguments.space is None:
        return default_space_of(arguments), None
    file = Path(arguments.space)
    config = analysis.Best.parameters_in(file)
    if config is None:
        return search_spaces.load_space(arguments.space, cluster=arguments.cluster), None
    own = analysis.RunFolder.holding(file).space_file
    space = search_spaces.load_space(own, cluster=arguments.cluster)
    try:
        return space, space.canonical(config)
    except ValueError as error:  # a parameter is missing, or its value is not in the space
        raise UsageError(f"{arguments.space}: key 'parameters': {error}") from None


def _pricing(space: search_spaces.SearchSpace, calibrate: Path | None) -> analysis.Pricing:
    """The space's prices, by a model that is calibrated with a run if one is given."""
    pricing, runs = calibrated(
        space,
        [calibrate] if calibrate else [],
        "there is nothing to predict from; a prediction needs the space's `model`, its cluster's "
        "facts and the degrees it searches",
    )
    for run, own in runs:
        if told := own.teaching(run.trials.values()):
            failed = sum(not trial.ok for trial in told)
            print(f"calibrated with {counted(len(told), 'trial')}, {failed} of them out of memory")
        else:
            print("not calibrated: no trial of the run has run or was out of memory")
    return pricing


def _check_scaling(arguments: Namespace) -> None:
    for option in ("nodes", "picture"):
        of_model = option == "nodes" and arguments.model is not None
        if getattr(arguments, option) and not arguments.scaling and not of_model:
            raise UsageError(f"--{option} goes with --scaling weak or --scaling strong")
    out: Path | None = arguments.picture
    if out is not None and (out.suffix not in _FORMS or not out.absolute().parent.is_dir()):
        raise UsageError(f"--picture {out}: accepted a file *.svg or *.pdf in a folder that exists")


def _scale(arguments: Namespace, pricing: analysis.Pricing, config: dict[str, Any]) -> None:
    try:
        nodes = arguments.nodes or ()
        own = arguments.model is not None and len(nodes) == 1  # of the configuration, not a list
        scaled = analysis.Scaled.of(pricing, config, arguments.scaling, () if own else nodes)
    except ValueError as error:
        raise UsageError(f"{pricing.space.file}: {error}") from error
    if arguments.picture:
        form = arguments.picture.suffix.removeprefix(".")
        write_atomically(arguments.picture, analysis.Drawn.of_what(scaled).encoded(form))
    tokens = arguments.tokens or DEFAULT_TOKENS
    if arguments.json:
        print_json("predict", of_scaling(scaled, tokens))
    else:
        print(scaled.table(tokens))


def calibrated(
    space: search_spaces.SearchSpace, runs: Iterable[Path], otherwise: str
) -> tuple[analysis.Pricing, list[tuple[analysis.Run, analysis.Pricing]]]:
    """Prices by a cost model that has learnt from runs, and each run with its own prices.

    Raises UsageError, ending in ``otherwise``, if the cost model cannot price the space or a run's.
    """
    where, learnt = space.file, []
    try:
        pricing = analysis.Pricing(space)
        for folder in runs:
            where = str(analysis.RunFolder(folder).space_file)
            own = analysis.Pricing(search_spaces.load_space(where))
            run = analysis.read_run(folder)
            pricing.learn(run, own)
            learnt.append((run, own))
    except (analysis.NotPricedError, analysis.MissingFactError) as error:
        raise UsageError(f"{where}: {error}: {otherwise}") from error
    return pricing, learnt


def check_model_options(arguments: Namespace) -> None:
    """Raise UsageError if options for a space, a model and nodes do not fit together."""
    given = [name for name in OF_A_MODEL if getattr(arguments, name) is not None]
    if arguments.model is None and arguments.space is not None and "cluster" in given:
        given.remove("cluster")  # in place of the space's own
    if arguments.space is not None and (given or arguments.model is not None):
        first = "model" if arguments.model is not None else given[0]
        raise UsageError(
            f"{option(first)} and the space {arguments.space} exclude each other; leave out one "
            "of them"
        )
    if arguments.space is None and (arguments.model is None or arguments.cluster is None):
        missing = [name for name in ("model", "cluster") if getattr(arguments, name) is None]
        raise UsageError(
            f"{' and '.join(option(name) for name in missing)} missing: accepted a space, or "
            "--model MODEL --cluster CLUSTER"
        )
    if arguments.model is not None and len(arguments.nodes or ()) > 1 and not arguments.scaling:
        raise UsageError("--nodes: several numbers go with --scaling weak or --scaling strong")


def default_space_of(arguments: Namespace) -> search_spaces.SearchSpace:
    """The space that the options stand for; prints what it assumes."""
    try:
        content = search_spaces.default_space(
            arguments.model,
            arguments.cluster,
            (arguments.nodes or [1])[0],
            arguments.framework or FRAMEWORK,
            seq_length=arguments.seq_length,
            global_batch_size=arguments.global_batch_size,
        )
    except search_spaces.SpaceArgumentError as error:
        raise UsageError(f"{option(error.argument)}: {error.what}") from None
    print(content["description"])
    free = [name for name in OF_A_MODEL if getattr(arguments, name) is None]
    if free:
        print(f"(assumed; set with {', '.join(option(name) for name in free)})")
    print()
    return search_spaces.load_space({**content, "trial": {"timeout": LONGEST}})


def option(argument: str) -> str:
    return f"--{argument.replace('_', '-')}"


def schema(_: Namespace) -> None:
    print(json.dumps(search_spaces.json_schema(), indent=2))
