"""Speculative decoding of offloaded mixture-of-experts models, with a small model to try it on.

Importing the package needs no torch; what runs a model imports it when called.
"""

from .demo_files import demo_drafter, demo_model

__all__ = ["demo_drafter", "demo_model"]
