"""``meshtune`` and ``python -m meshtune``: the command line."""

from __future__ import annotations

import sys

from meshtune.own_packages import HiddenPackageError, check_installed, install


def main() -> int:
    try:
        install()
        check_installed()
        from workflows import main as command

        return command()
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
