"""`python -m gateway` is the command `gateway`."""

from gateway.cli.main import cli

if __name__ == "__main__":
    cli(prog_name="gateway")
