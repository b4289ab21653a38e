"""A campaign of random faults against real searches, and what must hold after each.

    python -m benchmarks.chaos --rounds 200 --seed 1                  # 200 of each kind
    python -m benchmarks.chaos --rounds 200 --seed 1 --kinds local    # this machine's processes
    python -m benchmarks.chaos --rounds 200 --seed 1 --kinds plain kept    # a private, real Slurm
    python -m benchmarks.chaos --rounds 200 --seed 1 --kinds mpiexec       # a real Open MPI
    python -m benchmarks.chaos --rounds 200 --seed 1 --kinds study    # workers that share a study

A *round* is one search of a small space whose trainer misbehaves in some configurations, while
faults are injected into its driver, its processes, its files and its Slurm. Whatever happens, the
search is continued until it is done; then the *invariants* are checked. What a round does follows
from its seed alone (not when exactly: these are real processes). A failing round is played again
with faults left out, and the least that still fails is printed as a shell script.

Modules, in the order of a round: ``plan`` draws what is done, ``trainers`` is the program that
trains, ``rank`` what its ranks can do, ``machines`` and ``slurm_machine`` the place, ``world`` one
round's folders and driver, ``*_faults`` what is injected, ``invariants`` what must hold, ``rounds``
plays it all, and ``shrink`` leaves out what a failure does not need.

To add a fault: a generator function in a module ``*_faults`` with ``@fault(...)``; each of its
``yield`` lets the search continue for so many seconds. To add a misbehaviour of trainers: a
function in ``trainers`` with ``@case(...)``. To add an invariant: a function in ``invariants`` that
yields a sentence for each violation, and its name in ``CHECKS``. ``drawing`` finds them itself.
"""
