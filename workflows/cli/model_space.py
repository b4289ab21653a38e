"""``meshtune predict --model``: a space of which only model, cluster and nodes are said."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from workflows.cli.arguments import positive

if TYPE_CHECKING:
    from search_spaces import SearchSpace

FRAMEWORK = "megatron-lm"  # where none is named
OF_A_MODEL = ("cluster", "framework", "global_batch_size", "seq_length")
LONGEST = "365d"  # of a trial: none is run


def add_model_options(parser: ArgumentParser) -> None:
    """What stands in for a space."""
    group = parser.add_argument_group("without a space")
    group.add_argument(
        "--model", metavar="MODEL", help="a Hugging Face config.json, a *.yaml, or a shipped model"
    )
    group.add_argument("--cluster", metavar="CLUSTER", help="a *.yaml, or a shipped cluster")
    group.add_argument(
        "--framework", metavar="NAME", help=f"whose habits are priced; default: {FRAMEWORK}"
    )
    group.add_argument(
        "--seq-length", type=positive, metavar="L", help="tokens; default: the model's, up to 8192"
    )
    group.add_argument(
        "--global-batch-size",
        type=positive,
        metavar="B",
        help="sequences per step; default: those of about 4 million tokens",
    )


def check_model_options(arguments: Namespace) -> None:
    """Raise UsageError where they do not fit together."""
    from workflows.cli.errors import UsageError

    given = [name for name in OF_A_MODEL if getattr(arguments, name) is not None]
    if arguments.space is not None and (given or arguments.model is not None):
        first = "model" if arguments.model is not None else given[0]
        raise UsageError(
            f"{option(first)} goes without a space: {arguments.space} says all that; "
            "leave out one of them"
        )
    if arguments.space is None and (arguments.model is None or arguments.cluster is None):
        missing = [name for name in ("model", "cluster") if getattr(arguments, name) is None]
        raise UsageError(
            f"{' and '.join(option(name) for name in missing)} missing: accepted a space, or "
            "--model MODEL --cluster CLUSTER"
        )
    if arguments.model is not None and len(arguments.nodes or ()) > 1 and not arguments.scaling:
        raise UsageError("--nodes: several numbers go with --scaling weak or --scaling strong")


def default_space_of(arguments: Namespace) -> SearchSpace:
    """The space that the options mean; prints what it assumes."""
    from search_spaces import SpaceArgumentError, default_space, load_space
    from workflows.cli.errors import UsageError

    try:
        content = default_space(
            arguments.model,
            arguments.cluster,
            (arguments.nodes or [1])[0],
            arguments.framework or FRAMEWORK,
            seq_length=arguments.seq_length,
            global_batch_size=arguments.global_batch_size,
        )
    except SpaceArgumentError as error:
        raise UsageError(f"{option(error.argument)}: {error.what}") from None
    print(content["description"])
    free = [name for name in OF_A_MODEL if getattr(arguments, name) is None]
    if free:
        print(f"(assumed; set with {', '.join(option(name) for name in free)})")
    print()
    return load_space({**content, "trial": {"timeout": LONGEST}})


def option(argument: str) -> str:
    """How an argument is written on the command line."""
    return f"--{argument.replace('_', '-')}"
