from __future__ import annotations

from pathlib import Path

from slurm.trial import TrialSpec, master_port, rendezvous_environment


def trial(name: str = "run-0007-1") -> TrialSpec:
    return TrialSpec(name, Path("/runs/0007"), ("train",), 2, 4, timeout_s=60)


def test_another_attempt_gets_another_port_in_a_range_that_no_kernel_hands_out() -> None:
    ports = [master_port(trial(f"run-0007-{attempt}")) for attempt in range(1, 200)]
    assert len(set(ports)) > 190
    assert all(20000 <= port < 30000 for port in ports)


def test_ranks_are_told_their_number_where_to_meet_and_which_trial_they_are_of() -> None:
    assert rendezvous_environment(trial(), "node002") == {
        "MASTER_ADDR": "node002",
        "MASTER_PORT": str(master_port(trial())),
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": "8",
        "TORCHELASTIC_RUN_ID": "run-0007-1",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "MESHTUNE_TRIAL": "run-0007-1",
        "MESHTUNE_TRIAL_DIR": "/runs/0007",
    }
