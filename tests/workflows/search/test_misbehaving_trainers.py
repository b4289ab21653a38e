"""Trainers that leave anything but a result: each ends its own trial, and the search goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from analysis.run.folder import RunFolder
from search_spaces import SearchSpace
from slurm.local.launcher import LocalLauncher
from workflows.search.session import Search

TRAINER = """
import json, os, shutil, sys
folder, result = os.getcwd(), {"speed": 7}
def deep(): open("result.json", "w").write('{"speed": ' + "[" * 700 + "]" * 700 + "}")
def directory(): os.mkdir("result.json")
def pipe(): os.mkfifo("result.json")
def device(): os.symlink("/dev/zero", "result.json")
def infinite(): json.dump({"speed": 10 ** 400}, open("result.json", "w"))
def sparse(): open("result.json", "w").truncate(1 << 40)
def removed(): shutil.rmtree(folder)
def replaced(): shutil.rmtree(folder); open(folder, "w")
def logs(): os.remove("stderr.log"); os.mkdir("stderr.log"); os.remove("stdout.log"); \
    os.mkfifo("stdout.log"); json.dump(result, open("result.json", "w"))
def endless(): sys.stdout.write("x" * (20 << 20)); json.dump(result, open("result.json", "w"))
def bar(): sys.stderr.write("step 1 error 0 world_size 4 \\r" * 100_000); \
    json.dump(result, open("result.json", "w"))
def large(): json.dump({**result, "all": [1] * 2_000_000}, open("result.json", "w"))
(deep, directory, pipe, device, infinite, sparse, removed, replaced, logs, endless, bar,
    large)[int(sys.argv[1]) - 1]()
"""


def test_a_misbehaving_trainer_ends_its_own_trial_only(
    tmp_path: Path, make_space: Callable[..., SearchSpace]
) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    space = make_space(
        trainer=f"{{command: [{sys.executable}, {tmp_path / 'train.py'}, '{{mbs}}']}}",
        parameters="{mbs: {range: [1, 12]}}",
        cluster="{name: toy, gpus_per_node: 1, memory_gib: 1, peak_fp32_tflops: 0.1}",
    )
    with closing(LocalLauncher()) as launcher:
        run = Search(space, RunFolder(tmp_path / "run"), launcher).run()
    ends = {t.config["mbs"]: (t.kind, len(t.attempts)) for t in run.trials.values()}
    crashed, diverged = dict.fromkeys((1, 2, 3, 4, 6, 7, 8), ("crash", 1)), {5: ("diverged", 1)}
    assert ends == {**crashed, **diverged, **dict.fromkeys((9, 10, 11, 12), ("ok", 1))}
    assert (tmp_path / "run" / "journal.jsonl").stat().st_size < 100_000
