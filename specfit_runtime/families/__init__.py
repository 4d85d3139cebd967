"""The model families whose experts can be offloaded, one file each."""

from .registry import ExpertFamily, ExpertPiece

__all__ = ["ExpertFamily", "ExpertPiece"]
