"""The scatter of models that a fit was not given."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.cost.memory_fit import Measurements
from analysis.cost.model import CostModel
from benchmarks.cost_model.between_models import SIGMAS, fitted_to, missed, shapes
from search_spaces.cluster import Cluster
from search_spaces.known import framework_named
from trainer.plan.jobs import jobs

HIDDEN = np.repeat([2048.0, 3072.0, 4096.0, 6144.0], 8)
MODEL = CostModel(Cluster.named("dgx_h100"), framework_named("megatron-lm"))


def measured(slower: np.ndarray) -> Measurements:
    """Runs of four models, in micro-batches of 1 to 8, so much slower than the model says."""
    of = jobs(
        {
            "num_layers": 24, "hidden_size": HIDDEN, "num_heads": 16, "kv_heads": 16,
            "ffn_size": 4 * HIDDEN, "gated": False, "tied_embeddings": True, "vocab_size": 32000,
            "seq_length": 2048, "tp": 1, "pp": 1, "dp": 8, "gas": 4,
            "mbs": np.tile([1, 2, 3, 4, 5, 6, 7, 8], 4), "zero_stage": 0,
        }
    )  # fmt: skip
    none = np.full(len(of), np.nan)
    return Measurements(of, MODEL.predict(of).step_time_s * slower, none, none > 0)


def test_models_that_differ_widen_the_interval_of_another_one() -> None:
    rng = np.random.default_rng(2)
    noise = np.exp(0.01 * rng.standard_normal(32))
    alike = fitted_to(measured(noise), MODEL)
    assert alike.tail_log_sd < 0.1
    apart = measured(noise * np.where(HIDDEN == 4096, 1.5, 1.0))
    own, wide = MODEL.calibrated(apart), fitted_to(apart, MODEL)
    assert wide.tail_log_sd == missed(apart, MODEL) > max(0.15, own.tail_log_sd)
    assert wide.constants == own.constants  # the fit itself is to all of them
    # One of four folds has the slow model: 95 % of all errors reach into its own.
    assert wide.tail_log_sd == pytest.approx(np.log(1.5) / SIGMAS, rel=0.3)


def test_a_model_alone_says_nothing_of_others() -> None:
    every = measured(np.ones(32))
    one = Measurements(
        every.jobs[:8], every.step_time_s[:8], every.peak_bytes[:8], every.out_of_memory[:8]
    )
    assert len({*shapes(one.jobs)}) == 1 and missed(one, MODEL) == 0
    assert fitted_to(one, MODEL).tail_log_sd == MODEL.calibrated(one).tail_log_sd
