"""`python -m rankfold` is the command `rankfold`."""

from rankfold.reconciler.cli import main

if __name__ == "__main__":
    main()
