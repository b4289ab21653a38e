"""The contract of trainers that a space can name, as tests.

A trainer's author subclasses the suite in a test module and gives a space that uses it::

    from meshtune.testing.trainers import TrainerContract


    class TestMegatron(TrainerContract):
        text = "version: 1 ... trainer: {use: megatron, options: {script: pretrain_gpt.py}} ..."

The trainer must be found by its name, so its distribution is installed (``pip install -e .``).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from search_spaces import Candidates, SearchSpace, load_space

SAMPLED = 50  # configurations on which the rules are tried


class TrainerContract:
    """Tests of a trainer; subclass it and set ``text``, a space's YAML."""

    text: str

    @pytest.fixture
    def space(self, tmp_path: Path) -> SearchSpace:
        file = tmp_path / "contract.yaml"
        file.write_text(self.text)
        return load_space(file)

    @pytest.fixture
    def configs(self, space: SearchSpace) -> list[dict[str, Any]]:
        """Configurations that satisfy the constraints of the space and of the trainer."""
        return Candidates(space).draw(SAMPLED, np.random.default_rng(0), [], 2**31)

    def test_every_configuration_has_a_command_of_plain_words(
        self, space: SearchSpace, configs: list[dict[str, Any]], tmp_path: Path
    ) -> None:
        for config in configs:
            command = space.command(config, tmp_path)
            assert command and all(isinstance(word, str) and word for word in command)
            assert command == space.command(config, tmp_path), "it is not pure"

    def test_commands_differ_where_configurations_do(
        self, space: SearchSpace, configs: list[dict[str, Any]], tmp_path: Path
    ) -> None:
        """The commands themselves, or the configuration file in the trial's folder."""
        commands = [
            (space.command(config, tmp_path), json.dumps(space.train_config(config, "tokens")))
            for config in configs
        ]
        assert len(set(commands)) == len(configs)

    def test_a_trial_is_told_its_own_folder_and_writes_nothing_before_it_runs(
        self, space: SearchSpace, configs: list[dict[str, Any]], tmp_path: Path
    ) -> None:
        before = sorted(tmp_path.iterdir())
        space.command(configs[0], tmp_path / "trial")
        space.train_config(configs[0], "tokens")
        assert sorted(tmp_path.iterdir()) == before

    def test_the_configuration_file_is_json(
        self, space: SearchSpace, configs: list[dict[str, Any]]
    ) -> None:
        for config in configs:
            content = space.train_config(config, "tokens")
            assert json.loads(json.dumps(content, allow_nan=False)) == content

    def test_its_patterns_have_the_number_in_a_group(self, space: SearchSpace) -> None:
        for metric, patterns in space.program.log.patterns.items():
            assert metric
            assert all(re.compile(pattern.regex).groups >= 1 for pattern in patterns)

    def test_its_axes_are_parameters_of_the_space(self, space: SearchSpace) -> None:
        assert set(space.program.axes) <= set(space.parameters)

    def test_a_frozen_space_has_the_same_trainer(self, space: SearchSpace, tmp_path: Path) -> None:
        file = tmp_path / "frozen.yaml"
        file.write_text(space.frozen())
        again = load_space(file)
        assert again.fingerprint == space.fingerprint
        assert type(again.program) is type(space.program)
