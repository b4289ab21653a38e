"""``meshtune``: the command line. Thin: every command is a call into the library.

Imports are inside the commands, so that ``--help`` answers at once (torch, DeepHyper and shap
take seconds). Exit codes: 0 done, 1 the run failed, 2 the input is wrong, 3 stopped with work
left (the same command goes on), 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str] | None = None) -> int:
    """Parse ``argv`` (default: the process's) and run the command; returns the exit code."""
    arguments = _parser().parse_args(argv)
    from workflows.cli import commands, errors  # what all commands need, and it is little

    try:
        code: int = getattr(commands, arguments.handler)(arguments)
        sys.stdout.flush()
    except errors.input_errors() as error:
        print(f"meshtune: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Whoever read us has enough; the interpreter's own last flush must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except errors.run_errors() as error:
        print(f"meshtune: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="meshtune",
        description="Find the parallel training configuration that trains fastest, and show why.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(handler=name.replace("-", "_"))
        return sub

    sub = command("search", "Start a search, or go on with it.")
    _space(sub)
    _run_dir(sub)
    _launcher(sub, "local, srun, simulate")
    sub.add_argument(
        "--simulate",
        default="",
        metavar="KEY=VALUE,...",
        help="of the simulated cluster: nodes, seed, noise, time ... (docs/guide/simulate.md)",
    )
    _site(sub)
    _how(sub)
    sub.add_argument(
        "--dry-run", action="store_true", help="print the first trials' commands; start nothing"
    )

    sub = command("submit", "Submit a search as a batch job that continues until it is done.")
    _space(sub)
    _site(sub)
    sub.add_argument("--nodes", type=_positive, required=True, metavar="N")
    sub.add_argument("--time", required=True, metavar="T", help="as sbatch takes it: 02:00:00")
    sub.add_argument("--account", metavar="A")
    sub.add_argument("--partition", metavar="P")
    sub.add_argument("--qos", metavar="Q")
    _how(sub)
    _run_dir(sub)
    sub.add_argument("--dry-run", action="store_true", help="print the batch script only")

    sub = command("check", "Count a space's configurations, and what each rule removes.")
    _space(sub)

    sub = command(
        "predict", "Rank a space's configurations by the cost model, before anything runs."
    )
    sub.add_argument(
        "space", metavar="SPACE|CONFIG", help="a space (file or shipped), or a run's best.yaml"
    )
    sub.add_argument("--top", type=_positive, default=20, metavar="N", help="default: 20")
    sub.add_argument("--explain", action="store_true", help="where memory and time of the first go")
    sub.add_argument(
        "--calibrate", type=Path, metavar="RUN", help="fit the model's constants to a run's trials"
    )
    sub.add_argument(
        "--scaling",
        choices=("weak", "strong"),
        help="the first one on more and more nodes: its batch grows with them, or stays",
    )
    sub.add_argument(
        "--nodes", type=_counts, metavar="N,...", help="default: doubled again and again"
    )
    sub.add_argument(
        "--tokens", type=_tokens, metavar="T", help="to train on, 300e9 say; default: 10^12"
    )
    sub.add_argument("--picture", type=Path, metavar="FILE.png", help="of the scaling")

    sub = command(
        "preflight", "Measure this machine or allocation, and write its cluster file for a space."
    )
    sub.add_argument("--out", type=Path, metavar="FILE.yaml", help="default: the cluster's name")
    sub.add_argument("--nodes", type=_positive, metavar="N", help="default: all there are")
    sub.add_argument(
        "--ranks-per-node", type=_positive, metavar="N", help="default: one per GPU, or per core"
    )
    _launcher(sub)
    _site(sub)
    sub.add_argument("--quick", action="store_true", help="fewer groups, sizes and repeats")
    sub.add_argument("--dry-run", action="store_true", help="print the command; start nothing")

    sub = command("replay", "Play the search against a recorded sweep, or against a run's trials.")
    sub.add_argument("table", type=Path, metavar="TABLE.csv", help="a sweep, or RUN/results.csv")
    sub.add_argument(
        "--policy",
        metavar="NAME",
        default="meshtune",
        help="as for a search; default: meshtune",
    )
    sub.add_argument(
        "--parallel", type=_positive, default=1, metavar="N", help="trials at once; default: 1"
    )
    sub.add_argument("--seeds", type=_positive, default=5, metavar="N", help="default: 5")
    sub.add_argument(
        "--landscape",
        metavar="COLUMN,...",
        help="rows with equal values in these are searched together; default: by model and machine",
    )
    sub.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")

    command("schema", "Print the JSON Schema of a space file, for editors.")

    sub = command("status", "Show how a run stands.")
    sub.add_argument("run", type=Path, metavar="RUN")

    sub = command("report", "Write RUN/report/index.html.")
    sub.add_argument("run", type=Path, metavar="RUN")

    sub = command("train", "Train with the configuration that a search found best.")
    sub.add_argument("best", type=Path, metavar="BEST.yaml")
    _launcher(sub)
    _site(sub)
    sub.add_argument("--steps", type=_positive, metavar="N", help="measured steps")
    sub.add_argument("--out", type=Path, default=Path("train"), metavar="DIR")

    sub = command("prepare-data", "Tokenize text into PREFIX.bin and PREFIX.idx.")
    sub.add_argument("files", nargs="+", type=Path, metavar="FILE")
    sub.add_argument("--out", type=Path, required=True, metavar="PREFIX")

    sub = command("minicluster", "A real Slurm on this one machine, to try things on.")
    sub.add_argument("action", choices=("up", "down", "status"))
    sub.add_argument("--nodes", type=_positive, default=8, metavar="N")
    sub.add_argument("--gpus-per-node", type=_positive, default=2, metavar="N")
    sub.add_argument("--mem-per-node", default="2G", metavar="SIZE")
    sub.add_argument("--dir", type=Path, metavar="DIR", help="where it lives")
    return parser


def _space(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "space", metavar="SPACE", help="a space file, or the name of a shipped one (tiny_cpu)"
    )


def _run_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="default: runs/NAME after the space"
    )


def _how(parser: argparse.ArgumentParser) -> None:
    """How a search goes: the same whether it starts now or as a batch job."""
    parser.add_argument("--trials", type=_positive, metavar="N", help="budget: trials in all")
    parser.add_argument("--seed", type=_seed, metavar="N", help="default: 0, or the run's own")
    parser.add_argument(
        "--policy",
        metavar="NAME",
        default="meshtune",
        help="what chooses the configurations: meshtune (default: the cost model, corrected by "
        "what is measured and backed by Bayesian optimization), deephyper, optuna, cost-model (its "
        "ranking alone), sobol, random, or an installed one",
    )
    parser.add_argument(
        "--warm-start",
        type=Path,
        nargs="+",
        default=[],
        metavar="RUN",
        help="earlier runs, of any model, size or machine, that the cost model learns from",
    )


def _launcher(parser: argparse.ArgumentParser, known: str = "local, srun") -> None:
    # Not ``choices``: installed distributions add launchers, and --help need not look for them.
    parser.add_argument(
        "--launcher",
        metavar="NAME",
        help=f"{known}, or one that is installed; default: srun inside a Slurm allocation, "
        "else local",
    )
    parser.add_argument(
        "--hostfile", type=Path, metavar="FILE", help="hosts, for a launcher that needs a list"
    )


def _site(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--site", default="generic", metavar="S", help="generic, frontier, perlmutter, or a file"
    )


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def _counts(text: str) -> list[int]:
    return [_positive(item) for item in text.split(",")]


def _tokens(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of tokens")
    return value


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
