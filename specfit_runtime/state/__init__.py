"""What decoding learns, kept between processes in a folder of the user's."""

from .keeper import StateKeeper

__all__ = ["StateKeeper"]
