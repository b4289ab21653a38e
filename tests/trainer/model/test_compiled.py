"""Layers as torch's compiler makes them: its own code beside what runs eagerly."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import Tensor

from tests.support.checkpoint_cases import MODELS
from trainer.model.transformer import Block, Places
from trainer.plan.model import ModelConfig
