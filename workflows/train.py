"""``meshtune train best.yaml``: train with what a search found."""

from __future__ import annotations

import json
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from analysis.run.atomic import write_atomically
from analysis.units import counted
from slurm.launcher import Launcher
from slurm.outcome.kinds import Kind
from slurm.trial import Lease, TrialSpec
from trainer.config import ConfigError, TrainConfig

NO_LIMIT_S = 10 * 365 * 86400.0


@dataclass(frozen=True)
class Best:
    """The content of a report's ``best.yaml``: a training configuration or a command."""

    path: Path
    num_nodes: int
    ranks_per_node: int
    train: dict[str, Any] | None
    command: tuple[str, ...]
    env: dict[str, str]


def load_best(path: Path) -> Best:
    """Read ``best.yaml``; raises ConfigError that names the file and what is missing."""
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if not isinstance(content, dict) or content.get("meshtune_best") != 1:
        raise ConfigError(
            f"{path}: not a best.yaml (no `meshtune_best: 1`); `meshtune report RUN` writes one"
        )
    train, command = content.get("train"), content.get("command")
    try:
        if train is not None:
            TrainConfig.parse(train)
        elif not command:
            raise ConfigError("has neither `train` nor `command`")
        return Best(
            path=path,
            num_nodes=int(content["num_nodes"]),
            ranks_per_node=int(content["ranks_per_node"]),
            train=train,
            command=tuple(str(argument) for argument in command or ()),
            env={str(k): str(v) for k, v in (content.get("env") or {}).items()},
        )
    except KeyError as error:
        raise ConfigError(f"{path}: has no key {error}") from error
    except (ValueError, TypeError, AttributeError) as error:  # ConfigError is a ValueError
        raise ConfigError(f"{path}: {error}") from error


def parameters_of(path: Path) -> dict[str, Any] | None:
    """The configuration in a ``best.yaml``; None for any other file, or none.

    Raises:
        ConfigError: for a best.yaml without parameters, or away from its run.
    """
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return None  # a shipped space's name, or a file that its own reader will complain of
    if not isinstance(content, dict) or "meshtune_best" not in content:
        return None
    if not isinstance(content.get("parameters"), dict):
        raise ConfigError(f"{path}: has no `parameters`; `meshtune report RUN` writes them")
    if not (path.parent.parent / "space.yaml").exists():
        raise ConfigError(
            f"{path}: there is no {path.parent.parent / 'space.yaml'}: leave it in its run's "
            "report folder, where model and cluster are known"
        )
    return dict(content["parameters"])


def train_best(best: Best, launcher: Launcher, out: Path, steps: int | None) -> int:
    """Train in ``out`` and print the figures; returns the exit code.

    Args:
        best: what to train.
        launcher: gives it its processes.
        out: a folder for the configuration, the logs and ``result.json``.
        steps: measured steps instead of the search's few.
    """
    out = out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    argv = tuple(argument.replace("{trial_dir}", str(out)) for argument in best.command)
    if best.train is not None:
        config = {**best.train, **({"measured_steps": steps} if steps else {})}
        write_atomically(out / "config.json", json.dumps(config, indent=1) + "\n")
        argv = (sys.executable, "-m", "trainer", str(out / "config.json"))
    spec = TrialSpec(
        name=f"meshtune-train-{out.name}",
        directory=out,
        argv=argv,
        num_nodes=best.num_nodes,
        ranks_per_node=best.ranks_per_node,
        timeout_s=NO_LIMIT_S,
        env=best.env,
    )
    nodes = tuple(launcher.nodes()[: best.num_nodes])
    if len(nodes) < best.num_nodes:
        needed = counted(best.num_nodes, "node")
        raise ConfigError(f"{best.path} needs {needed}; found {len(nodes)}")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):  # end the ranks, wherever they are
        signal.signal(number, lambda *_: stop.set())
    print(f"training on {', '.join(nodes)}; logs in {out}")
    outcome = launcher.run(spec, Lease("train", nodes), stop)
    if outcome.kind is not Kind.OK:
        print(f"{outcome.kind}: {outcome.message}\n{outcome.stderr_tail}", file=sys.stderr)
        return 1
    for key, value in (outcome.result or {}).items():
        if isinstance(value, (int, float)):
            print(f"{key:28s}{value:.6g}")
    return 0
