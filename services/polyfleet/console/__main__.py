"""`python -m polyfleet.console`."""

from polyfleet.console.command import main

if __name__ == "__main__":
    main()
