"""The encoders, one file per architecture, and the registry of model families."""

from tmft.models.families import config_from_dict

__all__ = ["config_from_dict"]
