"""Trials on hosts that `mpiexec` reaches: a host file, PBS or LSF; Open MPI or MPICH."""
