"""``meshtune verify-gpu``: whether the built-in trainer works correctly on this node's GPUs.

Every check runs in a process of its own with a time limit. One file keeps the results, so that the
same command continues after the last check.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from analysis import read_run
from foundation.documents import read_document
from foundation.files import FileError, read_json
from foundation.writing import write_atomically
from search_spaces import Cluster
from trainer.verify import SIZES, TINY, Check, planned

Result = dict[str, Any]
_VERSION = 1


class NoGpuError(Exception):
    """There is nothing to verify here."""


def verify(
    out: Path, device: str, parts: Sequence[int], say: Callable[[str], None] = print
) -> list[str]:
    """Run the checks of some parts that have no good result yet; returns what to fix.

    Raises NoGpuError if torch finds no GPU, FileError if ``out`` is not this command's file.
    """
    results = _read(out)
    facts = results.get("device")
    if facts is None or facts["status"] != "ok":
        facts = results["device"] = _in_process(next(planned(1)), device)
        if facts["status"] != "ok":
            raise NoGpuError(facts["message"])
    elif facts["type"] != device:
        raise FileError(f"{out} is of a {facts['type']}: choose another --out, or remove it")
    gpus = _count() if device == "cuda" else 2
    for check in planned(gpus):
        if check.part not in parts:
            continue
        if results.get(check.name, {}).get("status") not in ("ok", "refused"):
            begin_s = time.monotonic()
            if check.kind in ("search", "layouts"):
                results[check.name] = _search(check, device, facts, out)
            else:
                results[check.name] = _in_process(check, device)
            results[check.name]["took_s"] = round(time.monotonic() - begin_s, 1)
            content = {"verify_gpu": _VERSION, "checks": results}
            write_atomically(out, json.dumps(content, indent=1) + "\n")
        say(_line(check, results[check.name]))
    return [
        f"{check.name}: {results[check.name]['message']}\n    remedy: {check.remedy}"
        for check in planned(gpus)
        if results.get(check.name, {}).get("status") == "wrong"
    ]


def _line(check: Check, result: Result) -> str:
    shown = {
        "seconds": "{:.3f} s a step",
        "tflops": "{:.0f} TFLOP/s",
        "difference": "within {:.1g}",
    }
    figures = [text.format(result[key]) for key, text in shown.items() if key in result]
    first = str(result.get("message", "")).partition("\n")[0][:120]
    return f"part {check.part}  {result['status']:8}{check.name}  {', '.join(figures) or first}"


def _read(out: Path) -> dict[str, Result]:
    if not out.exists():
        return {}
    content = read_json(out)
    if not isinstance(content, dict) or content.get("verify_gpu") != _VERSION:
        raise FileError(f"{out} is no file of verify-gpu: choose another --out")
    found: dict[str, Result] = content["checks"]
    return found


def _count() -> int:
    """GPUs of this node, as a process of its own sees them."""
    argv = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    return int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)


def _in_process(check: Check, device: str) -> Result:
    told = [check.kind, json.dumps(check.settings), device]
    code, stdout, stderr = limited([sys.executable, "-m", "trainer.verify", *told], check.limit_s)
    lines = [line for line in stdout.splitlines() if line.startswith("{")]
    if code is None:
        return _wrong(f"no end within {check.limit_s:.0f} s")
    if not lines:
        return _wrong(f"exit code {code}: {_last(stderr)}")
    found: Result = json.loads(lines[-1])
    return found


def limited(argv: Sequence[str], limit_s: float) -> tuple[int | None, str, str]:
    """Exit code (None if it was killed, with its children, at the limit), output and errors."""
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, *process.communicate()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, stdout, stderr


def _wrong(message: str) -> Result:
    return {"status": "wrong", "message": message}


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]


# ---- searches ----


def space(check: Check, device: str, facts: Result) -> dict[str, Any]:
    """The space of a search: every layout of a tiny model, or batches that do not fit."""
    layouts, on_gpu = check.kind == "layouts", device == "cuda"
    spaces = read_document(Path(__file__).with_suffix(".yaml")).root.plain()
    name = "layouts" if layouts else "search" if on_gpu else "search on a CPU"
    own: dict[str, Any] = spaces[name]
    own["trainer"]["builtin"]["device"] = device
    if layouts:
        own["parameters"] |= {**check.settings, "global_batch_size": 4 * check.gpus}
    model = TINY if not on_gpu else {**TINY, **check.model} if layouts else SIZES["1B"]
    return {
        "version": 1,
        "model": {"name": "layers", **model},
        "cluster": _cluster(device, facts, check.gpus),
        "objective": {"maximize": "tokens_per_second"},
        **own,
    }


def _cluster(device: str, facts: Result, gpus: int) -> dict[str, Any]:
    """A shipped cluster with this GPU, as one node; on a CPU the demo's."""
    if device == "cpu":
        chosen = Cluster.shipped()["tiny_cpu"]
        return chosen.model_copy(update={"gpus_per_node": gpus, "links": []}).model_dump(
            exclude_defaults=True
        )
    words = str(facts["name"]).replace("NVIDIA", "").split()
    for cluster in Cluster.shipped().values():
        alike = abs(cluster.memory_bytes / int(facts["memory_bytes"]) - 1) < 0.05
        if alike and words and words[0] in cluster.gpu:
            few = cluster.model_copy(update={"gpus_per_node": gpus, "links": [], "nic": None})
            return few.model_dump(exclude_defaults=True)
    raise LookupError(f"no shipped cluster has {facts['name']}: `meshtune preflight` measures it")


def _search(check: Check, device: str, facts: Result, out: Path) -> Result:
    folder = out.with_suffix("") / check.name
    folder.mkdir(parents=True, exist_ok=True)
    path, run = folder / "space.yaml", folder / "run"
    shutil.rmtree(run, ignore_errors=True)  # what failed in it may be repaired
    try:
        path.write_text(yaml.safe_dump(space(check, device, facts), sort_keys=False))
    except LookupError as error:
        return _wrong(str(error))
    argv = [sys.executable, "-m", "meshtune", "search", str(path), "--launcher", "local"]
    code, _, stderr = limited([*argv, "--run-dir", str(run)], check.limit_s)
    if code != 0:
        said = "no end within its limit" if code is None else f"exit code {code}: {_last(stderr)}"
        return _wrong(f"{said}; see {folder}")
    trials: list[Result] = []
    for number, trial in read_run(run).trials.items():
        if trial.stopped_early:
            trials.append({"status": "ok"})
        elif trial.ok:
            trials.append(read_json(run / f"trials/{number:04d}/result.json"))
        elif trial.ended:
            told = f"trial {number}: {trial.kind}: {trial.message}"
            trials.append({"status": str(trial.kind), "message": told})
    return judged(check, trials)


def judged(check: Check, trials: Sequence[Any]) -> Result:
    """The result of a search by its trials: wrong if any failed, or layouts' losses differ."""
    bad = [trial["message"] for trial in trials if trial["status"] not in ("ok", "oom")]
    good = [trial for trial in trials if trial["status"] == "ok"]
    if bad or not good:
        return _wrong(f"{len(bad)} of {len(trials)} trials failed: {(bad or ['none ran'])[0]}")
    figures: Result = {"trials": len(trials), "out_of_memory": len(trials) - len(good)}
    if check.kind == "layouts":
        last = [trial["loss"][-1] for trial in good]
        figures["difference"] = max(last) / min(last) - 1
        if figures["difference"] > check.tolerance:
            return _wrong(f"layouts end with losses from {min(last)} to {max(last)}")
    return {"status": "ok", **figures}
