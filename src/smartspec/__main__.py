"""`python -m smartspec` is the command `smartspec`."""

from smartspec.cli.main import main

if __name__ == "__main__":
    main()
