"""``meshtune predict --model``: a space made of a model, a cluster and a number of nodes."""

from __future__ import annotations

from argparse import Namespace

import search_spaces
from workflows.cli.arguments import UsageError

FRAMEWORK = "megatron-lm"  # the default
OF_A_MODEL = ("cluster", "framework", "global_batch_size", "seq_length")
LONGEST = "365d"  # of a trial: none is run


def check_model_options(arguments: Namespace) -> None:
    """Raise UsageError if they do not fit together."""
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
