"""`python -m edgedistill` runs the commands."""

from edgedistill.cli import main

if __name__ == "__main__":
    main()
