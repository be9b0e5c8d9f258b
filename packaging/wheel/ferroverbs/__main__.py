"""``python -m ferroverbs``, and the script ``ferroverbs``: becomes the command of the package."""

import os
import sys

from . import command


def main():
    """Replaces this process by the command, with the same arguments."""
    path = command()
    os.execv(path, ["ferroverbs", *sys.argv[1:]])


if __name__ == "__main__":
    main()
