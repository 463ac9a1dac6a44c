"""The three parts that are compiled. They may fail to and are for Linux: loadgen/native.py does without."""

import sys

from setuptools import Extension, setup

COMPILED = [
    Extension(
        name,
        [name.replace(".", "/") + ".pyx"],
        depends=["loadgen/_clock.pxd", "loadgen/_lane.pxd"],
        extra_compile_args=["-O2", "-Wall", "-Wextra"],
        optional=True,
    )
    for name in ("loadgen._lane", "loadgen._harvest", "loadgen.reference._streams")
]

setup(ext_modules=COMPILED if sys.platform == "linux" else [])
