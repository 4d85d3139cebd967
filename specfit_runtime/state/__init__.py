"""What decoding learns, kept between processes: in a folder of the user's, a file for each setup."""

from .keeper import StateKeeper

__all__ = ["StateKeeper"]
