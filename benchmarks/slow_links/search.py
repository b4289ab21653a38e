"""Whether ``meshtune search`` finds the best placement on slow links by itself.

    python -m benchmarks.slow_links.search [--rate 100] [--trials 16] [--run-dir DIR]

Searches ``search_spaces/placements_slow_links.yaml`` with the proposer, driver, journal and
trainer of ``meshtune search``; only the nodes are others: network namespaces of this machine, with
a limited link each. Prints the best trial of every placement; fails unless ZeRO-topo's best beats
ZeRO-3's. Needs root and iproute2.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
import tempfile
import threading
from contextlib import closing
from pathlib import Path

from analysis.run.fold import read_run
from analysis.run.folder import RunFolder
from analysis.run.trial import Trial
from benchmarks.slow_links.network import INTERFACE, SlowNetwork
from benchmarks.slow_links.rank import NAMESPACE_VARIABLE
from foundation.python import module_arguments, module_argv
from search_spaces import load_space
from slurm.local.launcher import LocalLauncher
from slurm.outcome.classify import Outcome
from slurm.outcome.step_log import StopRule
from slurm.trial import Lease, TrialSpec
from workflows.search.budget import Budget
from workflows.search.session import Search, run_session

SPACE = "placements_slow_links"
_RANK_MODULE = "benchmarks.slow_links.rank"
_FIRST_PORT = 29500  # in a node's own namespace, where nobody else listens


class SlowLinksLauncher(LocalLauncher):
    """The local launcher, with the network's nodes in place of its own.

    Args:
        network: the nodes, made already.
    """

    name = "slow-links"

    def __init__(self, network: SlowNetwork) -> None:
        super().__init__(network.num_nodes, preload=_RANK_MODULE)
        self.network = network
        self._ports = itertools.count(_FIRST_PORT)

    def run(
        self,
        spec: TrialSpec,
        lease: Lease,
        stop: threading.Event,
        stop_rule: StopRule | None = None,
    ) -> Outcome:
        argv = module_argv(_RANK_MODULE, *(module_arguments(spec.argv, "trainer") or ()))
        return super().run(dataclasses.replace(spec, argv=argv), lease, stop, stop_rule)

    def _rank_env(self, spec: TrialSpec, lease: Lease) -> list[dict[str, str]]:
        nodes = [self.nodes().index(node) for node in lease.nodes]
        meeting = {
            "MASTER_ADDR": self.network.address(nodes[0]),
            "MASTER_PORT": str(next(self._ports)),
            "GLOO_SOCKET_IFNAME": INTERFACE,
        }
        envs = super()._rank_env(spec, lease)
        for env in envs:
            node = nodes[int(env["RANK"]) // spec.ranks_per_node]
            env.update(meeting, **{NAMESPACE_VARIABLE: self.network.namespace(node)})
        return envs


def best_of_each(trials: list[Trial]) -> dict[str, Trial]:
    """The fastest trial of every placement, the fastest first."""
    best: dict[str, Trial] = {}
    for trial in trials:
        name = str(trial.config["placement"])
        if trial.objective is not None and (
            name not in best or trial.objective > (best[name].objective or 0.0)
        ):
            best[name] = trial
    return dict(sorted(best.items(), key=lambda item: -(item[1].objective or 0.0)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=100.0, help="Mbit/s of each node's link")
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run-dir", type=Path, help="where to keep the run; default: nowhere")
    arguments = parser.parse_args()
    space = load_space(SPACE)
    (num_nodes,) = space.parameters["num_nodes"].values
    with tempfile.TemporaryDirectory(prefix="slow-links-") as temporary:
        folder = RunFolder(arguments.run_dir or Path(temporary) / "run")
        with (
            SlowNetwork(int(num_nodes), arguments.rate) as network,
            closing(SlowLinksLauncher(network)) as launcher,
        ):
            budget = Budget(arguments.trials)
            code = run_session(Search(space, folder, launcher, arguments.seed, budget=budget))
        if code:
            return code
        best = best_of_each(list(read_run(folder.path).trials.values()))
    print(f"\nbest trial of each placement, {num_nodes} nodes, {arguments.rate:g} Mbit/s links:")
    for name, trial in best.items():
        print(f"  {name:10} {trial.objective:10.4g} tokens/s  trial {trial.number}: {trial.config}")
    found = list(best)
    if "zero_topo" not in found or "zero3" not in found:
        print("the search has not tried both ZeRO-topo and ZeRO-3: give it more --trials")
        return 1
    return int(found.index("zero_topo") > found.index("zero3"))


if __name__ == "__main__":
    sys.exit(main())
