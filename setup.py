"""Build of the compiled kernel; everything else is in pyproject.toml.

Environment variables:

``SPECFIT_BUILD_CHECKED=1``
    Bounds checks on, in Cython and in the kernel's own arrays.
``SPECFIT_BUILD_SANITIZE=1``
    The checked build under the address and undefined-behaviour sanitizers.
``SPECFIT_BUILD_PURE=1``
    No compiled kernel: the pure-Python twin alone.
"""

import os
import sys

from setuptools import Extension, setup


def switch(name: str) -> bool:
    """Whether an environment variable is set to anything but 0."""
    return os.environ.get(name, "") not in ("", "0")


def extensions() -> list[Extension]:
    """Return the compiled modules of this build."""
    if switch("SPECFIT_BUILD_PURE"):
        return []
    from Cython.Build import cythonize

    sanitize = switch("SPECFIT_BUILD_SANITIZE")
    checked = sanitize or switch("SPECFIT_BUILD_CHECKED")
    flags = [] if sys.platform == "win32" else ["-O3", "-fno-math-errno"]
    link: list[str] = []
    if sanitize:
        flags = ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined"]
        link = ["-fsanitize=address,undefined"]
    kernel = Extension(
        "specfit_opt.kernel._kernel",
        ["specfit_opt/kernel/_kernel.pyx"],
        depends=[
            f"specfit_opt/kernel/{name}"
            for name in (
                "_kernel.pxd",
                "rows.h",
                "checks.h",
                "price.pxi",
                "look_up.pxi",
                "maxflow.pxi",
                "closure.pxi",
                "affine.pxi",
                "table.pxi",
            )
        ],
        extra_compile_args=flags,
        extra_link_args=link,
        define_macros=[("SPECFIT_CHECKED", "1")] if checked else [],
    )
    modules: list[Extension] = cythonize(
        [kernel],
        compiler_directives={
            "language_level": 3,
            "boundscheck": checked,
            "wraparound": False,
            "initializedcheck": checked,
            "cdivision": True,
            "freethreading_compatible": True,
        },
    )
    return modules


setup(ext_modules=extensions())
