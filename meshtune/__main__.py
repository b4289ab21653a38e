"""``meshtune`` and ``python -m meshtune``: the command line."""

from __future__ import annotations

import signal
import sys

from meshtune.own_packages import HiddenPackageError, check_installed, install


def main() -> int:
    try:
        install()
        check_installed()
        from workflows import main as command

        code = command()
        # Slurm's warning must not kill a finished search: an exiting Python restores the defaults
        # of handled signals, but leaves ignored ones ignored.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        return code
    except HiddenPackageError as error:
        print(f"meshtune: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # a module could not be read
        print(f"meshtune: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # while modules were imported
        return 130


if __name__ == "__main__":
    sys.exit(main())
