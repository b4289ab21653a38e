"""``meshtune check``, ``predict`` and ``schema``: what is known of a space before anything runs."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from workflows.cli.arguments import (
    Commands,
    add_space,
    command,
    counts,
    folder,
    path,
    positive,
    tokens,
)
from workflows.cli.json_output import (
    add_json,
    of_check,
    of_ranking,
    of_scaling,
    print_json,
    remarks,
)
from workflows.cli.model_space import add_model_options, check_model_options, default_space_of
from workflows.cli.working import Working

if TYPE_CHECKING:
    from analysis import Pricing
    from search_spaces import SearchSpace

DEFAULT_TOKENS = 1e12  # to train on
_FORMS: Mapping[str, Literal["png", "svg"]] = {".png": "png", ".svg": "svg"}


def add_commands(commands: Commands) -> None:
    """Add this group's commands."""
    parser = command(
        commands,
        "check",
        check,
        "Count a space's valid configurations, and what each rule removes.",
    )
    add_space(parser)
    add_json(parser)

    parser = command(
        commands,
        "predict",
        predict,
        "Rank a space's configurations by the cost model, before anything runs.",
    )
    parser.add_argument(
        "space",
        nargs="?",
        metavar="SPACE|CONFIG",
        help="a space (file or shipped), or a run's best.yaml; or none, with --model and --cluster",
    )
    add_model_options(parser)
    parser.add_argument("--top", type=positive, default=20, metavar="N", help="default: 20")
    parser.add_argument(
        "--explain", action="store_true", help="where memory and time of the first one go"
    )
    parser.add_argument(
        "--calibrate",
        type=folder,
        metavar="RUN",
        help="fit the model's constants to a run's trials",
    )
    parser.add_argument(
        "--scaling",
        choices=("weak", "strong"),
        help="scale the first one to more and more nodes; its batch grows with them (weak) or "
        "stays (strong)",
    )
    parser.add_argument(
        "--nodes",
        type=counts,
        metavar="N,...",
        help="node counts of --scaling; default: repeated doubling. With --model the first one is "
        "that of the configurations; default: 1",
    )
    parser.add_argument(
        "--tokens", type=tokens, metavar="T", help="training tokens, such as 300e9; default: 1e12"
    )
    parser.add_argument(
        "--picture", type=path, metavar="FILE", help="plot the scaling: *.png, *.svg"
    )
    add_json(parser)

    command(commands, "schema", schema, "Print the JSON Schema of a space file, for editors.")


def check(arguments: Namespace) -> int:
    """Print how many configurations a space has and what removes the others."""
    from analysis import likely_to_fit
    from search_spaces import check as count, load_space

    space = load_space(arguments.space)
    with Working("counting valid configurations") as tell:
        report = count(space)
        tell("predicting their memory")
        expected = likely_to_fit(report)
    if arguments.json:
        return print_json(of_check(report, expected))
    print(report.text())
    print(expected)
    return 0


def predict(arguments: Namespace) -> int:
    """Print what the cost model expects of a space, or of one configuration."""
    from analysis import (
        Best,
        MissingFactError,
        RunFolder,
        explain,
        rank,
        rank_one,
        ranking_table,
    )
    from search_spaces import load_space
    from workflows.cli.errors import UsageError

    _check_scaling(arguments)
    check_model_options(arguments)
    config = None
    if arguments.space is None:
        with remarks(arguments):
            space = default_space_of(arguments)
    else:
        config = Best.parameters_in(Path(arguments.space))
        of_run = RunFolder.holding(Path(arguments.space)).space_file
        space = load_space(of_run if config is not None else arguments.space)
    with remarks(arguments):
        pricing = _pricing(space, arguments.calibrate)
    if config is not None:
        try:
            config = space.canonical(config)
        except ValueError as error:  # a parameter that is missing, or has no such value there
            raise UsageError(f"{arguments.space}: key 'parameters': {error}") from None
    try:
        with Working("pricing configurations"):
            ranking = rank_one(pricing, config) if config else rank(pricing, arguments.top)
        if arguments.scaling and ranking.configs:
            return _scale(arguments, pricing, ranking.configs[0])
    except MissingFactError as error:
        raise UsageError(
            f"{space.file}: {error}; state it in the cluster's record, or let "
            "`meshtune preflight` measure it"
        ) from error
    if arguments.json:
        return print_json(of_ranking(ranking, arguments.explain))
    print(ranking_table(ranking))
    if arguments.explain and ranking.configs:
        print()
        print(explain(ranking, arguments.tokens or DEFAULT_TOKENS))
    return 0


def _pricing(space: SearchSpace, calibrate: Path | None) -> Pricing:
    """Prices of a space; by a model that is calibrated with a run, if there is one."""
    from analysis import (
        MissingFactError,
        NotPricedError,
        Pricing,
        RunFolder,
        calibration_note,
        read_run,
    )
    from search_spaces import load_space
    from workflows.cli.errors import UsageError

    where = space.file
    try:
        pricing = Pricing(space)
        if calibrate:
            where = str(RunFolder(calibrate).space_file)
            run, other = read_run(calibrate), Pricing(load_space(where))
            pricing.learn(run, other)
            print(calibration_note(other, run))
    except (NotPricedError, MissingFactError) as error:
        raise UsageError(
            f"{where}: {error}: there is nothing to predict from; a prediction needs the space's "
            "`model`, its cluster's facts and the degrees it searches"
        ) from error
    return pricing


def _check_scaling(arguments: Namespace) -> None:
    from workflows.cli.errors import UsageError

    for option in ("nodes", "picture"):
        of_model = option == "nodes" and arguments.model is not None
        if getattr(arguments, option) and not arguments.scaling and not of_model:
            raise UsageError(f"--{option} goes with --scaling weak or --scaling strong")
    if arguments.tokens and not (arguments.scaling or arguments.explain):
        raise UsageError("--tokens goes with --explain or --scaling")
    out: Path | None = arguments.picture
    if out is not None and (out.suffix not in _FORMS or not out.absolute().parent.is_dir()):
        raise UsageError(f"--picture {out}: accepted a file *.png or *.svg in a folder that exists")


def _scale(arguments: Namespace, pricing: Pricing, config: dict[str, Any]) -> int:
    """Print the scaling of a configuration, and draw it."""
    from analysis import scale, scaling_table
    from workflows.cli.errors import UsageError

    try:
        nodes = arguments.nodes or ()
        own = arguments.model is not None and len(nodes) == 1  # of the configuration, not a list
        scaled = scale(pricing, config, arguments.scaling, () if own else nodes)
    except ValueError as error:
        raise UsageError(f"{pricing.space.file}: {error}") from error
    if arguments.picture:
        from analysis import scaling_image

        form = _FORMS[arguments.picture.suffix]
        arguments.picture.write_bytes(scaling_image(scaled, form))
    tokens = arguments.tokens or DEFAULT_TOKENS
    if arguments.json:
        return print_json(of_scaling(scaled, tokens))
    print(scaling_table(scaled, tokens))
    return 0


def schema(_: Namespace) -> int:
    """Print the JSON Schema of a space file."""
    from search_spaces import json_schema

    print(json.dumps(json_schema(), indent=2))
    return 0
