"""Ask and tell: proposals and results of somebody else's loop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import meshtune
from analysis import RunError, Trial
from meshtune import Study
from search_spaces import SearchSpace
from workflows.cli.run import state_of

SPACE = """
version: 1
name: own
cluster: {name: toy, gpus_per_node: 2, memory_gib: 1, peak_fp32_tflops: 0.1}
trainer: {command: [train, "{tp}"]}
parameters: {num_nodes: [1, 2], tp: [1, 2], mbs: [1, 2, 4]}
objective: {maximize: speed}
budget: {trials: 100}
"""


@pytest.fixture
def space(tmp_path: Path) -> SearchSpace:
    file = tmp_path / "own.yaml"
    file.write_text(SPACE)
    return meshtune.load_space(file)


def speed(config: dict[str, int]) -> float:
    return 10.0 * config["tp"] + config["mbs"]


def test_every_configuration_is_asked_for_once_and_the_best_is_known(space: SearchSpace) -> None:
    with Study(space) as study:
        while (trial := study.ask()) is not None:
            study.tell(trial, {"speed": speed(trial.config)})
        assert study.best is not None and study.best.objective == 24.0
        configs = [tuple(trial.config.items()) for trial in study.trials]
        assert len(configs) == len(set(configs)) == 12


def test_the_same_seed_and_results_give_the_same_trials(space: SearchSpace) -> None:
    asked = []
    for _ in range(2):
        with Study(space, seed=3, policy="deephyper") as study:
            for _ in range(8):
                trial = study.ask()
                assert trial is not None
                study.tell(trial, "oom" if trial.config["mbs"] == 4 else {"speed": 1.0})
            asked.append([trial.config for trial in study.trials])
    assert asked[0] == asked[1]


def test_what_was_asked_for_and_never_told_is_asked_for_again_after_a_crash(
    space: SearchSpace, tmp_path: Path
) -> None:
    study = Study(space, tmp_path / "run", seed=5)
    asked = [study.ask() for _ in range(3)]
    assert asked[0] and asked[1] and asked[2]
    study.tell(asked[1], {"speed": 3.0})
    del study  # nobody has closed it
    with Study(space, tmp_path / "run") as again:
        assert again.run.seed == 5
        first, second, new = again.ask(), again.ask(), again.ask()
        assert first and second and new
        assert [first.number, second.number, new.number] == [1, 3, 4]
        again.tell(first, {"speed": 1.0})
    assert list(meshtune.load(tmp_path / "run")["objective"]) == [1.0, 3.0]


def test_a_trial_can_be_told_by_another_process_than_asked_for_it(
    space: SearchSpace, tmp_path: Path
) -> None:
    with Study(space, tmp_path / "run") as study:
        trial = study.ask()
        assert trial is not None
    with Study(space, tmp_path / "run") as later:
        later.tell(trial.number, {"speed": 7.0})
        assert later.best is not None and later.best.objective == 7.0
        following = later.ask()
        assert following is not None and following.number == 2


def test_a_failure_of_the_machine_is_asked_for_again_and_one_of_the_trial_is_not(
    space: SearchSpace,
) -> None:
    with Study(space) as study:
        trial = study.ask()
        assert trial is not None
        study.tell(trial, "node_failure", "the node went down")
        again = study.ask()
        assert again is not None and again.number == trial.number
        study.tell(again, "oom", "2 GiB too many")
        following = study.ask()
        assert following is not None and following.number == 2
        assert study.trials[0].kind == "oom" and study.trials[0].message == "2 GiB too many"


def test_no_trial_is_wider_than_what_is_free(space: SearchSpace) -> None:
    with Study(space) as study:
        asked = []
        while (trial := study.ask(max_nodes=1)) is not None:
            asked.append(trial.config["num_nodes"])
        assert asked == [1] * 6


@pytest.mark.parametrize(
    ("result", "complaint"),
    [({"velocity": 3.0}, "no number 'speed'"), ("slow", "result='slow': accepted oom")],
)
def test_a_wrong_result_is_an_error_and_not_a_result(
    space: SearchSpace, result: object, complaint: str
) -> None:
    with Study(space) as study:
        trial = study.ask()
        assert trial is not None
        with pytest.raises(ValueError, match=complaint):
            study.tell(trial, result)  # type: ignore[arg-type]
        study.tell(trial, {"speed": 1.0})
        with pytest.raises(ValueError, match="only once"):
            study.tell(trial, {"speed": 1.0})


def test_a_figure_that_is_not_finite_has_diverged(space: SearchSpace) -> None:
    with Study(space) as study:
        trial = study.ask()
        assert trial is not None
        study.tell(trial, {"speed": float("nan")})
        assert study.trials[0].kind == "diverged"


def test_a_folder_of_a_search_that_runs_its_trials_is_refused(tmp_path: Path) -> None:
    meshtune.search(
        "gpt_22b_frontier", launcher="simulate", trials=1, policy="random", run_dir=tmp_path / "run"
    )
    with pytest.raises(ValueError, match="run by the launcher 'simulate'"):
        Study("gpt_22b_frontier", tmp_path / "run")


def test_the_run_of_a_study_has_a_report(space: SearchSpace) -> None:
    with Study(space, policy="sobol") as study:
        for _ in range(10):
            trial = study.ask()
            assert trial is not None
            study.tell(trial, {"speed": speed(trial.config)})
        assert meshtune.report(study).stat().st_size > 1000
        assert state_of(study.run, None).startswith("not open; the program")
        assert meshtune.sensitivity(meshtune.load(study)).mean_abs.index[0] == "tp"


def test_numbers_of_numpy_are_results_and_are_kept_as_plain_numbers(space: SearchSpace) -> None:
    with Study(space) as study:
        trial = study.ask()
        assert trial is not None
        study.tell(trial, {"speed": np.float32(4.5), "ids": np.arange(2), 7: np.int64(3)})
        assert (trial.objective, trial.result) == (4.5, {"speed": 4.5, "ids": [0, 1], "7": 3})


def test_a_result_that_is_not_json_is_an_error_that_names_its_key_and_the_trial_still_runs(
    space: SearchSpace,
) -> None:
    with Study(space) as study:
        trial = study.ask()
        assert trial is not None
        with pytest.raises(ValueError, match=r"the result's 'where'=.*: accepted numbers"):
            study.tell(trial, {"speed": 1.0, "where": Path("x")})
        study.tell(trial, {"speed": 1.0})
        assert trial.kind == "ok"


def test_a_trial_can_be_told_by_the_number_that_a_table_has(space: SearchSpace) -> None:
    with Study(space) as study:
        study.ask()
        study.tell(np.int64(1), {"speed": 1.0})
        with pytest.raises(ValueError, match="trial=None: accepted"):
            study.tell(None, "oom")  # type: ignore[arg-type]


def test_a_module_that_cannot_be_read_for_a_moment_is_a_documented_error(
    space: SearchSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def propose(*_: object) -> None:
        raise ImportError("_pcg64.so: cannot open shared object file: Too many open files")

    with Study(space, policy="random") as study:
        with monkeypatch.context() as patched:
            patched.setattr(study._policy, "propose", propose)
            with pytest.raises(RunError, match="Too many open files"):
                study.ask()
        assert study.ask() is not None


@pytest.fixture
def priced(tmp_path: Path) -> SearchSpace:
    file = tmp_path / "priced.yaml"
    file.write_text("""
version: 1
name: priced
trainer: {command: [train]}
model: llama_8b
cluster: dgx_h100
parameters: {num_nodes: 4, tp: [1, 2], pp: [1, 2], mbs: [1, 2], global_batch_size: 256}
objective: {maximize: tokens_per_second}
""")
    return meshtune.load_space(file)


def test_a_recorded_result_may_be_told_at_once(priced: SearchSpace) -> None:
    with Study(priced) as study:
        study.tell(asked(study), {"tokens_per_second": 200e3})  # 10 s a step
        assert study.best is not None
        assert study.best.elapsed_s < 10


def test_a_result_that_no_gpu_reaches_is_an_error_and_not_a_crash(priced: SearchSpace) -> None:
    with Study(priced) as study:
        trial = asked(study)
        with pytest.raises(ValueError, match=r"trial 1: .*check the unit"):
            study.tell(trial, {"tokens_per_second": 200e6})
        study.tell(trial, {"tokens_per_second": 200e3})
        assert study.best is not None


def test_old_measurements_are_learned_from_and_not_asked_for_again(priced: SearchSpace) -> None:
    old = [{"num_nodes": 4, "tp": tp, "pp": 1, "mbs": 1, "gas": 8 * tp} for tp in (1, 2)]
    with Study(priced) as study:
        study.add(old[0], "oom")
        study.add(old[1], {"tokens_per_second": 100e3})
        study.add(old[1], {"tokens_per_second": 110e3})  # a repeat of it
        assert [trial.objective for trial in study.trials] == [None, 105e3]
        trial = asked(study)
        assert trial.number == 3 and trial.config not in old
        assert "after 1 success" in trial.why


@pytest.mark.parametrize(
    ("config", "result", "said"),
    [
        ({"tp": 3}, "oom", "tp: found 3, accepted 1, 2"),
        ({"cp": 2}, "oom", "cp: not a parameter of this space"),
        ({"gas": 9}, "oom", "gas"),
        ({}, {"tokens_per_second": 200e6}, "check the unit"),
        ({}, "slow", "accepted oom"),
    ],
)
def test_an_old_trial_that_cannot_be_is_refused_and_nothing_is_kept(
    priced: SearchSpace, config: dict[str, int], result: dict[str, float] | str, said: str
) -> None:
    whole = {"num_nodes": 4, "tp": 2, "pp": 1, "mbs": 1, "gas": 16}
    with Study(priced) as study:
        with pytest.raises(ValueError, match=said):
            study.add({**whole, **config}, result)
        with pytest.raises(ValueError, match=r"config=.*accepted a dict"):
            study.add([4, 2, 1, 1, 16], result)  # type: ignore[arg-type]
        assert not study.trials


def asked(study: Study) -> Trial:
    trial = study.ask()
    assert trial is not None
    return trial
