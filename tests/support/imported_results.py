"""What searches of DeepHyper and Optuna leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# As DeepHyper 0.13 wrote it of a search of its own, shortened.
DEEPHYPER = """\
p:lr,p:note,p:tp,objective,job_id,job_status,m:timestamp_submit,m:loss,m:timestamp_gather
0.0254,b,3,4.4746,0,DONE,0.266,0.3,0.267
0.0255,b,6,8.9745,1,DONE,0.292,0.6,0.293
0.0199,a,6,8.9801,2,DONE,0.309,0.6,0.314
0.0017,b,2,2.9983,3,DONE,2.097,0.2,2.098
0.0026,a,7,10.4974,4,DONE,2.243,0.7,2.244
0.0252,b,3,4.4748,5,DONE,2.339,0.3,2.340
0.0112,a,2,2.9888,6,DONE,4.140,0.2,4.141
0.0364,,8,F_oom,7,DONE,23.436,,23.437
0.0011,a,8,F_my_own_reason,8,DONE,42.461,,42.462
0.0024,b,7,10.4976,9,DONE,54.842,0.7,54.843
0.0018,a,7,10.4982,10,DONE,68.464,0.7,68.465
"""


def write_deephyper(folder: Path) -> Path:
    """``results.csv`` in a folder."""
    path = folder / "results.csv"
    path.write_text(DEEPHYPER)
    return path


def run_optuna(folder: Path, name: str = "mine", trials: int = 24) -> str:
    """A study whose objective is minimized, by Optuna itself; returns its storage's URL."""
    import optuna

    def objective(trial: Any) -> float:
        tp = trial.suggest_categorical("tp", [1, 2, 4, 8])
        micro = trial.suggest_int("micro-batch", 1, 4)
        if trial.number % 8 == 5:
            raise MemoryError("too large")
        seconds = float(10 / tp + 0.1 * micro)
        trial.report(seconds, 1)
        if trial.number % 8 == 7:
            raise optuna.TrialPruned
        trial.set_user_attr("peak_gib", 3.5 * tp)
        return seconds

    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    url = f"sqlite:///{folder}/optuna.db"
    study = optuna.create_study(
        study_name=name, storage=url, sampler=optuna.samplers.RandomSampler(seed=0)
    )
    study.optimize(objective, n_trials=trials, catch=(MemoryError,))
    return url
