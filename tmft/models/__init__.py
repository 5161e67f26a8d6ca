"""What differs between families of encoders: the table, and those with a file of their own."""

from tmft.models.registry import config_from_dict

__all__ = ["config_from_dict"]
