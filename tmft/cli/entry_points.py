"""What an installed package puts on the path: the commands of a checkout, as tmft-train and so on."""

from importlib import import_module

from tmft.cli.parser import run_command


def train() -> None:
    run_command(import_module("tmft.commands.train").main)


def cka() -> None:
    run_command(import_module("tmft.commands.cka").main)


def evaluate() -> None:
    run_command(import_module("tmft.commands.evaluate").main)


def get_data() -> None:
    run_command(import_module("tmft.shipped.get_data").main)
