"""The contract of policies, as tests.

A policy's author subclasses the suite in a test module and names the policy::

    from meshtune.testing.policies import PolicyContract
    from my_package.my_module import MyPolicy


    class TestMyPolicy(PolicyContract):
        policy = MyPolicy

A policy that cannot search some kind of space raises ``PolicyError`` when it is made; such a test
is skipped with its message.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from analysis import Run, Trial
from search_spaces import SearchSpace, load_space
from workflows import Policy, PolicyError, Problem, Proposal

WIDE = 2**31  # nodes: no trial is wider

_HERE = Path(__file__).parent
UNPRICED, PRICED = ((_HERE / f"{name}.yaml").read_text() for name in ("unpriced", "priced"))
SPACES = {
    "unpriced": UNPRICED,
    "priced": PRICED,
    "minimized": UNPRICED.replace("maximize: speed", "minimize: speed"),
    "two objectives": UNPRICED.replace("{maximize: speed}", "[maximize: speed, minimize: cost]"),
    "priced, two objectives": PRICED.replace(
        "{maximize: tokens_per_second}", "[maximize: tokens_per_second, minimize: num_nodes]"
    ),
}
Answer = Callable[[Mapping[str, Any]], tuple[str, float]]
_games: dict[tuple[Any, ...], tuple[Policy, Run]] = {}


def landscape(config: Mapping[str, Any]) -> tuple[str, float]:
    """An arbitrary kind and objective per configuration; a fifth runs out of memory."""
    weight = zlib.crc32(repr(sorted(config.items())).encode()) % 97
    return ("oom", 0.0) if weight % 5 == 0 else ("ok", 1000.0 + weight)


class PolicyContract:
    """Tests of a policy; subclass it and set ``policy``, a class or another callable."""

    policy: Callable[[Problem], Policy]

    @pytest.fixture(params=SPACES)
    def space(self, request: pytest.FixtureRequest, tmp_path: Path) -> SearchSpace:
        file = tmp_path / "contract.yaml"
        file.write_text(SPACES[request.param])
        return load_space(file)

    def make(self, space: SearchSpace, seed: int = 0, **more: Any) -> Policy:
        """The policy for a space; the test is skipped if it refuses."""
        try:
            return type(self).policy(Problem(space, seed, **more))
        except PolicyError as refusal:
            pytest.skip(f"it refuses: {refusal}")

    def run(self, space: SearchSpace) -> Run:
        """A run without trials."""
        return Run(Path(), goals=[(one.key, one.maximize) for one in space.objectives])

    def play(self, policy: Policy, run: Run, count: int, answer: Answer = landscape) -> None:
        """Propose and complete ``count`` trials."""
        for _ in range(count):
            proposal = policy.propose(run, WIDE)
            assert proposal is not None
            propose(run, proposal)
            tell(policy.problem.space, run, answer)

    def played(self, space: SearchSpace, count: int) -> Run:
        """The first ``count`` trials of one game, which one policy plays for all tests."""
        key = type(self), repr(space.goals), space.fingerprint
        policy, run = _games.setdefault(key, (self.make(space), self.run(space)))
        self.play(policy, run, count - len(run.trials))
        first = self.run(space)
        first.trials.update(copy.deepcopy([*run.trials.items()][:count]))
        return first

    def test_every_proposal_is_valid_canonical_and_new(self, space: SearchSpace) -> None:
        run = self.played(space, 10)
        for trial in run.trials.values():
            assert space.first_violation(trial.config) is None
            assert trial.config == space.canonical(trial.config)
            assert trial.by and trial.why
        assert len({tuple(trial.config.items()) for trial in run.trials.values()}) == 10

    def test_equal_seeds_and_histories_give_equal_proposals(self, space: SearchSpace) -> None:
        """Also for a policy that is made again after a restart."""
        unbroken = self.played(space, 9)
        for count in (0, 1, 5, 8):
            trial = unbroken.trials[count + 1]
            proposed = Proposal(trial.config, trial.by, trial.why, trial.expected)
            assert self.make(space).propose(self.played(space, count), WIDE) == proposed

    def test_proposing_changes_nothing(self, space: SearchSpace) -> None:
        policy, run = self.make(space), self.played(space, 6)
        before = copy.deepcopy(run)
        assert policy.propose(run, WIDE) == policy.propose(run, WIDE)
        assert run == before

    def test_pending_trials_are_never_proposed_again(self, space: SearchSpace) -> None:
        policy, run = self.make(space), self.played(space, 4)
        for _ in range(8):
            proposal = policy.propose(run, WIDE)
            assert proposal is not None
            assert proposal.config not in [trial.config for trial in run.trials.values()]
            propose(run, proposal)

    def test_no_proposal_is_wider_than_asked_for(self, space: SearchSpace) -> None:
        policy, run = self.make(space, seed=1), self.run(space)
        for _ in range(6):
            proposal = policy.propose(run, 1)
            assert proposal is not None and space.num_nodes(proposal.config) == 1
            propose(run, proposal)
            tell(space, run, landscape)

    def test_it_ends_when_everything_has_been_proposed(self, space: SearchSpace) -> None:
        few = Problem(space, 0).candidates.draw(5, Problem(space, 0).rng(self.run(space)), [], WIDE)
        policy, run = self.make(space, only=few), self.run(space)
        self.play(policy, run, 5)
        assert policy.propose(run, WIDE) is None
        proposed = [trial.config for trial in run.trials.values()]
        assert all(space.canonical(config) in proposed for config in few)

    @pytest.mark.parametrize("kind", ["oom", "timeout", "crash", "node_failure"])
    def test_a_history_of_failures_alone_does_not_stop_it(
        self, space: SearchSpace, kind: str
    ) -> None:
        self.play(self.make(space), self.run(space), 6, lambda _: (kind, 0.0))


def propose(run: Run, proposal: Proposal) -> None:
    """Add a trial for a proposal, as the driver does."""
    number = len(run.trials) + 1
    run.trials[number] = Trial(number, proposed_t=float(number), **asdict(proposal))


def tell(space: SearchSpace, run: Run, answer: Answer) -> None:
    """Complete the run's last trial."""
    trial = run.trials[len(run.trials)]
    kind, value = answer(trial.config)
    trial.kind, trial.ended_t = kind, float(trial.number)
    if kind == "ok":
        trial.objective = value
        if space.more_objectives:
            keys = [objective.key for objective in space.objectives]
            nodes = float(space.num_nodes(trial.config))
            trial.objectives = {key: nodes if key == "num_nodes" else value for key in keys}
            trial.objective = trial.objectives[keys[0]]
