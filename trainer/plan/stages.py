"""Which pipeline rank has which stages, and which layers those have. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StageLayout:
    """Stages of a pipeline, ``vpp`` on each of ``pp`` ranks, numbered in the order of the model.

    Attributes:
        pp: ranks of the pipeline.
        vpp: stages of each.
        num_layers: of the model.
        first_layers: of the first rank; 0: its share.
        last_layers: of the last one, likewise.
        folded: the last stage is on the first rank, as stages go there and back.
    """

    pp: int
    vpp: int
    num_layers: int
    first_layers: int = 0
    last_layers: int = 0
    folded: bool = False

    def of_rank(self, pp_rank: int) -> tuple[int, ...]:
        """The numbers of a rank's stages."""
        if self.folded:
            return pp_rank, 2 * self.pp - 1 - pp_rank
        return tuple(range(pp_rank, self.pp * self.vpp, self.pp))

    def rank_of(self, stage: int) -> int:
        """The rank that a stage is on."""
        if self.folded:
            return min(stage, 2 * self.pp - 1 - stage)
        return stage % self.pp

    def layers(self, stage: int) -> range:
        """The numbers of a stage's layers."""
        held = self._layers_by_rank()
        before = sum(held[self.rank_of(one)] for one in range(stage)) // self.vpp
        return range(before, before + held[self.rank_of(stage)] // self.vpp)

    def _layers_by_rank(self) -> list[int]:
        """Of each rank, in all of its stages."""
        first, last = self.first_layers, self.last_layers
        sharing = self.pp - (first > 0) - (last > 0)
        share = (self.num_layers - first - last) // max(sharing, 1)
        held = [share] * self.pp
        held[0], held[-1] = first or held[0], last or held[-1]
        return held
