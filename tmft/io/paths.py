"""Where data lie: in a checkout all in data/; of an installed package what ships is in it, the rest where the
user works."""

from pathlib import Path

HERE = Path(__file__).resolve().parent.parent  # tmft/
CHECKOUT = HERE.parent / "data"
INSTALLED = not (CHECKOUT / "twins").is_dir()
SHIPPED = HERE / "shipped" if INSTALLED else CHECKOUT  # the sample, twins, the authors' scores
DATA_FOLDER = Path("data").absolute() if INSTALLED else CHECKOUT  # what get_data.py fetches
