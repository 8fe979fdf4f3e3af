"""`python -m outlast`: the same as the command `outlast`."""

from outlast.cli import main

if __name__ == "__main__":
    main()
