"""`python -m mergepipe` is the `mergepipe` command."""

from mergepipe.cli.main import main

if __name__ == "__main__":
    main()
