"""The one part that is compiled. It may fail to, and is for Linux alone: loadgen/native.py does without."""

import sys

from setuptools import Extension, setup

HARVEST = Extension(
    "loadgen._harvest",
    ["loadgen/_harvest.pyx"],
    extra_compile_args=["-O2", "-Wall", "-Wextra"],
    optional=True,
)

setup(ext_modules=[HARVEST] if sys.platform == "linux" else [])
