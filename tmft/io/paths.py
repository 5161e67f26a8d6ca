"""What depends on how tmft is installed: the folders of the data, and which packages are there."""

from importlib.util import find_spec
from pathlib import Path

PACKAGE_FOLDER = Path(__file__).resolve().parent.parent  # tmft/
CHECKOUT_DATA = PACKAGE_FOLDER.parent / "data"
IS_INSTALLED = not (CHECKOUT_DATA / "twins").is_dir()
# Folder of the data that come with the package: the sample, the twins, the scores of the paper's authors.
PACKAGE_DATA = PACKAGE_FOLDER / "shipped" if IS_INSTALLED else CHECKOUT_DATA
# Folder of the data that `tmft data` downloads: data/ of the checkout, or data/ in the current folder if the
# package is installed.
DATA_FOLDER = Path("data").absolute() if IS_INSTALLED else CHECKOUT_DATA
# The extra `torch` in pyproject.toml, but for huggingface-hub, which comes with tokenizers. With numpy and
# tokenizers alone, tmft has only `tmft encode TEXT`.
TORCH_PACKAGES = ("torch", "safetensors", "scipy")


def missing_packages(user: str) -> str:
    """Return that `user` needs those of TORCH_PACKAGES that are not installed; "" if none is missing."""
    missing = [name for name in TORCH_PACKAGES if find_spec(name) is None]
    # not tmft[torch]: tmft is on no package index, where others could take the name
    packages = " ".join(missing) if IS_INSTALLED else "-r requirements.txt"
    return f"{user} needs {', '.join(missing)}: pip install {packages}" if missing else ""
