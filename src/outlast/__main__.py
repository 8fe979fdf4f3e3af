"""`python -m outlast`: the same as the command `outlast`."""

from outlast.cli.process import command

if __name__ == "__main__":
    command()
