"""``meshtune`` and ``python -m meshtune``: the command line."""

from __future__ import annotations

import sys

from meshtune.own_packages import HiddenPackageError, check_installed, install


def main() -> int:
    """Run the command; returns the exit code."""
    try:
        install()
        check_installed()
        from workflows import main as command
    except HiddenPackageError as error:
        print(f"meshtune: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # imports take a second, in which Ctrl-C may come
        return 130

    return command()


if __name__ == "__main__":
    sys.exit(main())
