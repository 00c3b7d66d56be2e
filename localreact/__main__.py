"""`python -m localreact`."""

from localreact.cli import main

if __name__ == "__main__":
    main()
