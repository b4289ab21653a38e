"""Notes on parts of a space that are valid but probably not intended."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from foundation.documents import as_written, by_dotted_path
from foundation.messages import nearest
from search_spaces.known import FRAMEWORKS
from search_spaces.language.adapter_schema import AdapterFile
from search_spaces.language.trainer_schema import TrainerSpec
from search_spaces.space import SearchSpace

_WORK_PER_TIME = re.compile(r"(?:tokens|samples)_per_second|tflops|_per_token$|\bmfu$")
_OF_WHOLE_JOB = ("tokens_per_second", "samples_per_second")
_STEPS = re.compile(r"step_time|steps_per_second")
_BETTER = {  # known keys, by whether more is better; no note is made on a user's own keys
    True: r"(?:(?:padded_)?tokens|samples|steps|epochs)_per_second(?:_per_gpu)?|tflops_per_gpu|mfu",
    False: r"step_time_s(?:\..*)?|node_seconds_per_token|(?:val_)?loss",
}


def notes(space: SearchSpace) -> Iterator[str]:
    """Lines that ``check``, ``try`` and ``search`` print."""
    if space.assumed:
        yield space.assumed
    for name in space.unused():
        yield (
            f"the trainer's command does not depend on {name}: trials that differ only in it are "
            f"the same; pass {{{name}}} on, or give it one value"
        )
    for one in space.objectives:
        if re.fullmatch(_BETTER[not one.maximize], one.key):
            said, meant = ("maximize", "minimize") if one.maximize else ("minimize", "maximize")
            yield f"{said}: {one.key} looks for the worst: {meant} it"
    yield from _decided_beforehand(space)
    for argument in misplaced(space):
        yield (
            f"trials start in {space.workdir or 'folders of their own'} and will not find "
            f"{argument}: write its whole path, or the folder as trainer.workdir"
        )
    for script in _scripts(space) if space.trainer.container is None else ():
        if Path(script).is_absolute() and not Path(script).exists():
            yield f"there is no {script} on this machine; trials need it on their nodes"
    for path in unmounted(space):
        yield (
            f"the container will not see {path}: add its folder to trainer.container.mounts, "
            "unless the image or the site has it"
        )
    for name, file in space.trainer.files.items() if space.trainer.made_by is None else ():
        known = by_dotted_path(file.content or {})
        for path in sorted({*file.set} - {*known}):
            if close := [p for p in get_close_matches(path, known, 1, 0.9) if p not in file.set]:
                yield f"{name} has no {path} to begin with; did you mean '{close[0]}'?"
        if space.workdir and name in space.trainer.words:
            yield f"trials start in {space.workdir}: their own {name} is {{trial_dir}}/{name}"
    for name in _not_here(space):
        yield f"there is no {name} here, which your file names: its ZeRO stage counts as unstated"
    named = space.program.habits.name
    if space.model is not None and named not in FRAMEWORKS:
        yield (
            f"no record of the framework {as_written(named)}: what it keeps in memory is inferred "
            f"from the trials, starting from what others keep{nearest(named, FRAMEWORKS)}"
        )
    yield from _without_price(space)


def _not_here(space: SearchSpace) -> Iterator[str]:
    """Further files that the user's configuration file names and that were not found."""
    adapter = AdapterFile.named(space.trainer.made_by) if space.trainer.made_by else None
    if adapter is not None and adapter.file is not None:
        file = space.trainer.files.get(adapter.file.name)
        texts = [((file and file.content) or {}).get(key) for key in adapter.file.named]
        yield from (text for text in texts if isinstance(text, str))


def _decided_beforehand(space: SearchSpace) -> Iterator[str]:
    """Notes on a batch or a number of nodes that by itself decides the objective."""
    key = space.objective.key
    constrained = {name for constraint in space.constraints for name in constraint.names}
    read = frozenset[str]().union(*(space.reads[name] for name in constrained))
    speed, rate = _WORK_PER_TIME.search(key), _STEPS.match(key)
    gas = space.parameters.get("gas")
    if (speed or rate) and gas is not None and gas.varies and "gas" not in read:
        yield (
            f"the global batch is free, and {key} is best where it is "
            f"{'largest' if speed else 'smallest'}: gas will decide. Fix it: "
            "global_batch_size: 256 under parameters, in place of gas"
        )
    free = len(space.widths) > 1 and not constrained & {"num_nodes", "world_size"}
    if free and not space.more_objectives and (rate or key in _OF_WHOLE_JOB):
        yield (
            f"the number of nodes is free, and {key} is the whole job's: the most nodes will win. "
            "Give num_nodes one value, maximize tokens_per_second_per_gpu, or let minimize: "
            "num_nodes be a second objective"
        )


def misplaced(space: SearchSpace) -> list[str]:
    """Arguments that name a file here but not in the folder in which trials start."""
    here = (Path(space.file).parent, Path())
    started_in = space.workdir
    return [
        script
        for script in _scripts(space)
        if not Path(script).is_absolute()
        and any((folder / script).is_file() for folder in here)
        and not (started_in and (started_in / script).is_file())
    ]


def unmounted(space: SearchSpace) -> list[str]:
    """Paths in the command that exist here but, as far as known, not in the container."""
    container = space.trainer.container
    if container is None:
        return []
    seen = [Path(mount.split(":")[1]) for mount in container.mounts]
    seen += [space.workdir] if space.workdir else []
    texts = (text for text in space.trainer.words if "/" in text and "{" not in text)
    paths = [Path(text.rpartition("=")[2]) for text in texts]
    return [
        str(path)
        for path in dict.fromkeys(paths)
        if path.is_absolute()
        and len(path.parts) > 2
        and path.exists()
        and not any(path.is_relative_to(folder) for folder in seen)
    ]


def _scripts(space: SearchSpace) -> list[str]:
    """Arguments that are the name or the path of a script."""
    entries = [entry for entry in space.trainer.command or [] if isinstance(entry, str)]
    return [e for e in entries if e.endswith((".py", ".sh")) and "{" not in e]


_PARTLY = re.compile("fraction|ratio")
_OFF = (None, False, 0, "", "none", "None", "false", "no", "auto")


def _without_price(space: SearchSpace) -> Iterator[str]:
    """A note on the first option that offloads states in a way that the cost model is not told."""
    parameters = ("offload_optimizer", "offload_parameters")
    stated = [n for n in parameters if n in space.parameters and True in space.parameters[n].values]
    for name, value in sorted({*_offloading(space.trainer)}):
        partly = _PARTLY.search(name) and value not in ("1", "1.0")
        if partly or value == "nvme":
            yield (
                f"the cost model knows nothing of such offloading ({name} {value}): for it, states "
                "are all on the GPU or all in the host's memory; memory and step times will differ"
            )
            return
        words = [word for word in ("optim", "param") if word in name.lower()]
        if not any(word in one for one in stated for word in words or ("offload",)):
            yield (
                f"the cost model knows nothing of offloading ({name}): more will fit, and steps "
                "take longer, than it says; if states go to the host's memory, give the parameter "
                "offload_optimizer or offload_parameters the value true"
            )
            return


def _offloading(spec: TrainerSpec) -> Iterator[tuple[str, str]]:
    """Options, paths and variables that offload states to the host or to disks, with values."""
    words = spec.words
    for word, after in zip(words, [*words, ""][1:], strict=True):
        if word.startswith("-") and "offload" in word:
            name, _, value = word.partition("=")
            yield name, value or after
    for file in spec.files.values():
        for content in (file.content or {}, file.set, *(case.set for case in file.cases)):
            for path, value in by_dotted_path(content).items():
                if _switches_on(path, value):
                    yield path.removesuffix(".device"), str(value)
    for name, value in spec.env.items():
        if "OFFLOAD" in name and value not in _OFF:
            yield name, str(value)


def _switches_on(path: str, value: Any) -> bool:
    """Whether an offloading key, or its ``device``, is on; activations' offloading is modelled."""
    above, _, last = path.rpartition(".")
    says = "offload" in last or (last == "device" and "offload" in above)
    says |= last == "ratio" and "offload" in above
    return says and value not in _OFF and value != "{offload_activations}"
