"""Which packages are missing: with numpy and tokenizers alone, tmft has only `tmft encode TEXT`."""

from importlib.util import find_spec

from tmft.io.paths import IS_INSTALLED

# The extra `torch` in pyproject.toml, but for huggingface-hub, which comes with tokenizers.
TORCH_PACKAGES = ("torch", "safetensors", "scipy")


def missing_packages(user: str) -> str:
    """Return that `user` needs those of TORCH_PACKAGES that are not installed; "" if none is missing."""
    missing = [name for name in TORCH_PACKAGES if find_spec(name) is None]
    # not tmft[torch]: tmft is on no package index, where others could take the name
    packages = " ".join(missing) if IS_INSTALLED else "-r requirements.txt"
    return f"{user} needs {', '.join(missing)}: pip install {packages}" if missing else ""
