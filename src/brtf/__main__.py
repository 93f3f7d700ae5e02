"""``python -m brtf``: the command line, where no script is on the path."""

from brtf.cli import main

if __name__ == "__main__":
    main(prog_name="brtf")
