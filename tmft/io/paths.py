"""Folders of data: data/ in a checkout; an installed package brings some data and downloads the others."""

from pathlib import Path

PACKAGE_FOLDER = Path(__file__).resolve().parent.parent  # tmft/
CHECKOUT_DATA = PACKAGE_FOLDER.parent / "data"
IS_INSTALLED = not (CHECKOUT_DATA / "twins").is_dir()
# data that come with the package: the sample, the twins, the authors' scores
PACKAGE_DATA = PACKAGE_FOLDER / "shipped" if IS_INSTALLED else CHECKOUT_DATA
# data that `tmft data` downloads: data/ below the current folder if the package is installed
DATA_FOLDER = Path("data").absolute() if IS_INSTALLED else CHECKOUT_DATA
