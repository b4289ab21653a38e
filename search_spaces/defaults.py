"""A default space for a model on a cluster."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from foundation.documents import as_written
from foundation.messages import nearest
from search_spaces.cluster import Cluster
from search_spaces.errors import SpaceError
from search_spaces.frameworks import Framework
from search_spaces.known import FRAMEWORKS
from search_spaces.language.schema import ModelFile
from search_spaces.load import read_model
from search_spaces.parameter_values import divisors
from trainer.plan.limits import MAX_NODES
from trainer.plan.model import ModelConfig

BATCH_TOKENS = 2**22  # per step: usual for models of a few billion parameters and more
LONG_SEQUENCE = 16384  # tokens; context parallelism is tried from this length on
MBS = (1, 2, 4, 8)
MOST_STAGES, MOST_CHUNKS = 64, 8  # pipeline stages, and chunks per rank
MOST_CONTEXT, MOST_EXPERT = 16, 64  # ranks
Degrees = dict[str, list[int]]  # values of each parallel degree
_ENDS = ("account_for_embedding", "account_for_loss")


class SpaceArgumentError(SpaceError):
    """An ``argument`` of ``default_space`` is wrong; ``what`` was found, and what is accepted."""

    def __init__(self, argument: str, what: str) -> None:
        super().__init__(f"{argument}: {what}")
        self.argument, self.what = argument, what


def default_space(
    model: str | ModelConfig,
    cluster: str,
    nodes: int = 1,
    framework: str = "megatron-lm",
    *,
    seq_length: int | None = None,
    global_batch_size: int | None = None,
    settings: Collection[str] | None = None,
    batch_is_stated: bool = False,
    fixed: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """The content, for ``load_space``, of a space with all degrees worth trying.

    Args:
        model: a shipped model, a file (``*.yaml``, Hugging Face's ``config.json``), or its record.
        cluster: a shipped cluster, or a file.
        nodes: of every trial.
        seq_length: tokens of a training sequence; default the model's own.
        global_batch_size: sequences of a step; default about four million tokens.
        settings: parameters that the trainer has options for; default all.
        batch_is_stated: the trainer's own options state the batch, so that ``gas`` follows from it.
        fixed: degrees that the trainer's own options state; those of which others are worth trying
            are not taken from it.

    Raises SpaceArgumentError that names the argument, the value and what is accepted.
    """
    file, machine = _read(model, cluster, framework, seq_length)
    world, habits, shape = _world(machine, nodes), FRAMEWORKS[framework], file.config()
    degrees = _degrees(shape, machine, world, habits)
    own = {name: degree for name, degree in (fixed or {}).items() if degree > 1}
    if world % math.prod(own.values()) == 0:
        degrees |= {n: [degree] for n, degree in own.items() if len(degrees.get(n, ())) < 2}
    batch, gas = _batch(file, machine, world, degrees, global_batch_size)
    others = _others(shape, machine, habits, degrees)
    parameters = {"num_nodes": [nodes], **degrees, "mbs": MBS, "gas": gas, **others}
    if settings is not None:
        lacks = {"tp": not habits.choices.tensor, "pp": not habits.choices.pipelines}
        parameters = {
            name: values
            for name, values in parameters.items()
            if name in {*settings, "num_nodes", "gas"} and not (lacks.get(name) and values == [1])
        }
    if batch_is_stated:
        del parameters["gas"]
    return {
        "version": 1,
        "name": _name(model, cluster),
        "description": f"{_stem(model)}, {file.num_parameters / 1e9:,.4g} billion parameters, on "
        f"{nodes:,} x {machine.gpus_per_node} GPUs of {machine.name} with {framework}: steps of "
        f"{batch:,} x {file.seq_length:,} tokens, {batch * file.seq_length / 1e6:,.3g} million",
        "model": _named(model, file),
        "cluster": cluster,
        "trainer": _trainer(framework, parameters),
        "parameters": {n: v[0] if len(v) == 1 else [*v] for n, v in parameters.items()},
        "conditions": {"vpp": "pp > 1"} if "vpp" in parameters else {},
        "constraints": _constraints(habits, parameters, batch),
        "objective": {"maximize": "tokens_per_second"},
        "allow": _allowed(shape, habits, degrees["pp"]),
    }


def _world(machine: Cluster, nodes: int) -> int:
    most = min(MAX_NODES, machine.num_nodes or MAX_NODES)
    if not 1 <= nodes <= most:
        raise SpaceArgumentError(
            "nodes", f"found {nodes:,}, accepted 1 to {most:,} nodes of {machine.name}"
        )
    return nodes * machine.gpus_per_node


def _batch(
    file: ModelFile, machine: Cluster, world: int, degrees: Degrees, wanted: int | None
) -> tuple[int, list[int]]:
    """Sequences of a step, and the numbers of micro-batches that are possible with the degrees."""
    ranks = map(math.prod, product(degrees["tp"], degrees["pp"], degrees.get("cp", [1])))
    replicas = {world // count for count in ranks if world % count == 0}
    usual = default_batch(file, world, min(replicas))
    batch = wanted or usual
    sizes = {number * mbs for number in replicas for mbs in MBS}
    gas = sorted(batch // size for size in sizes if batch % size == 0)
    if not gas:
        raise SpaceArgumentError(
            "global_batch_size",
            f"found {batch:,}, accepted numbers of sequences that {world:,} GPUs of "
            f"{machine.name} can share, such as {usual:,}",
        )
    return batch, gas


def default_batch(model: ModelConfig, world: int, least: int) -> int:
    """Sequences of about four million tokens; a multiple of ``least``, the fewest replicas."""
    target = max(1, round(BATCH_TOKENS / model.seq_length))
    step = world
    while step > target and step % 2 == 0:
        step //= 2
    return math.ceil(max(1, round(target / step)) * step / least) * least


def _named(model: str | ModelConfig, file: ModelFile) -> dict[str, Any]:
    """The key ``model`` of the space."""
    if isinstance(model, str):
        return {"base": model, "seq_length": file.seq_length}
    return file.model_dump(exclude_defaults=True, exclude_none=True)


def _read(
    model: str | ModelConfig, cluster: str, framework: str, seq_length: int | None
) -> tuple[ModelFile, Cluster]:
    """The records of model and cluster; checks that the framework has one, too."""
    if framework not in FRAMEWORKS:
        hint = nearest(framework, FRAMEWORKS)
        accepted = f"accepted one of {', '.join(FRAMEWORKS)}{hint}"
        raise SpaceArgumentError("framework", f"found {as_written(framework)}, {accepted}")
    length = {"seq_length": seq_length} if seq_length else {}
    try:
        if isinstance(model, str):
            file = read_model(model, seq_length)
        else:
            file = ModelFile(**model.model_dump() | length)
    except SpaceError as error:
        raise SpaceArgumentError("model", str(error)) from None
    try:
        return file, Cluster.named(cluster)
    except SpaceError as error:
        raise SpaceArgumentError("cluster", str(error)) from None


def _degrees(model: ModelConfig, cluster: Cluster, world: int, habits: Framework) -> Degrees:
    """Parallel degrees that divide the ranks and whatever each of them splits."""
    choices, degrees = habits.choices, {"tp": [1], "pp": [1]}
    if choices.tensor:
        degrees["tp"] = divisors(math.gcd(cluster.gpus_per_node, model.kv_heads))
    if choices.pipelines:
        stages = _up_to(min(MOST_STAGES, model.num_layers), divisors(world))
        layers = _shared_layers(model, habits, stages)
        even = habits.split == "even" and not _allowed(model, habits, stages)
        degrees["pp"] = [pp for pp in stages if not even or layers % pp == 0]
        if choices.interleaved and degrees["pp"] != [1]:
            degrees["vpp"] = _up_to(MOST_CHUNKS, divisors(layers))
    if "cp" in choices.further and model.seq_length >= LONG_SEQUENCE:
        degrees["cp"] = _up_to(MOST_CONTEXT, divisors(world))
    if "ep" in choices.further and model.mixture is not None:
        experts = int(model.mixture.num_experts)
        degrees["ep"] = _up_to(MOST_EXPERT, divisors(math.gcd(world, experts)))
        if degrees["tp"] != [1] and habits.name != "meshtune":  # meshtune splits no expert
            degrees["etp"] = degrees["tp"]
    return degrees


def _up_to(most: int, numbers: list[int]) -> list[int]:
    return [number for number in numbers if number <= most]


def _others(
    model: ModelConfig, cluster: Cluster, habits: Framework, degrees: Degrees
) -> dict[str, Sequence[Any]]:
    others: dict[str, Sequence[Any]] = {
        "zero_stage": habits.choices.zero_stages,
        "recompute": ["none", "selective", "full"],
    }
    if degrees["tp"] != [1] and not habits.sequence_parallel:
        others["sequence_parallel"] = [False, True]
    if cluster.peak_bf16_tflops is None:
        others["precision"] = ["fp32"]
    if _shared_layers(model, habits, degrees["pp"]) > model.num_layers:
        others |= {name: [True] for name in _ENDS}
    return others


def _constraints(habits: Framework, parameters: Collection[str], batch: int) -> list[str]:
    """The batch, and rules of the framework, on the parameters that a space has."""
    least, most = habits.choices.zero_stages[0], habits.choices.zero_in_pipelines
    replicas = "dp * cp" if "cp" in parameters else "dp"
    rules = [(f"global_batch_size == {batch}", {"mbs", "gas"})]
    # With one replica there is nothing to split.
    rules.append((f"zero_stage == {least} or {replicas} > 1", {"zero_stage"}))
    if most < 3:
        rules.append((f"pp == 1 or zero_stage <= {most}", {"pp", "zero_stage"}))
    # Megatron's default is tp, its advice on mixtures 1.
    rules.append(("etp == 1 or etp == tp", {"etp", "tp"}))
    # Otherwise Megatron refuses mixtures of experts.
    rules.append(("tp == 1 or sequence_parallel", {"tp", "sequence_parallel", "ep"}))
    return [text for text, names in rules if names <= {*parameters}]


def _shared_layers(model: ModelConfig, habits: Framework, stages: Sequence[int]) -> int:
    """Layers that pipeline stages share.

    Embedding and loss count as two more layers if that makes more pipelines even (Llama 3 405B has
    126 layers) and the framework has the options.
    """
    layers = model.num_layers
    if habits.split != "even" or not {*_ENDS} <= {*habits.stage_settings}:
        return layers
    return max(layers, layers + 2, key=lambda n: sum(n % pp == 0 for pp in stages))


def _allowed(model: ModelConfig, habits: Framework, stages: Sequence[int]) -> list[str]:
    """Rules to switch off: stages may be uneven if only 1 or 2 stages divide the layers."""
    layers = _shared_layers(model, habits, stages)
    longer = [pp for pp in stages if pp > min(2, stages[-1] - 1)]
    even = any(layers % pp == 0 for pp in longer)
    return [] if even or stages == [1] or habits.name == "meshtune" else ["uneven_layers"]


def _trainer(framework: str, parameters: Iterable[str]) -> dict[str, Any]:
    if framework == "meshtune":
        return {"builtin": {"data": "python-source"}}
    command = ["train", *(f"--{name}={{{name}}}" for name in parameters)]
    return {"command": command, "framework": framework}


def _stem(model: str | ModelConfig) -> str:
    """A short name of the model: its file's, or its folder's if that is ``config.json``."""
    if not isinstance(model, str):
        return "model"
    path = Path(model)
    return path.absolute().parent.name if path.name == "config.json" else path.stem


def _name(model: str | ModelConfig, cluster: str) -> str:
    words = re.sub(r"[^A-Za-z0-9._-]+", "_", f"{_stem(model)}_{Path(cluster).stem}")
    return words.lstrip("._-")[:100]
