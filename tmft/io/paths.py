"""Paths of the data folders, which depend on whether tmft is installed or run from a checkout."""

from pathlib import Path

PACKAGE_FOLDER = Path(__file__).resolve().parent.parent  # tmft/
CHECKOUT_DATA = PACKAGE_FOLDER.parent / "data"
IS_INSTALLED = not (CHECKOUT_DATA / "twins").is_dir()
# Folder of the data that come with the package: the sample, the twins, the scores of the paper's authors.
PACKAGE_DATA = PACKAGE_FOLDER / "shipped" if IS_INSTALLED else CHECKOUT_DATA
# Folder of the data that `tmft data` downloads: data/ of the checkout, or data/ in the current folder if the
# package is installed.
DATA_FOLDER = Path("data").absolute() if IS_INSTALLED else CHECKOUT_DATA
