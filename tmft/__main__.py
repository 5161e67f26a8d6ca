"""python -m tmft: list the commands; python -m tmft NAME: run one of them."""

from tmft.cli.entry_points import main

if __name__ == "__main__":
    main()
