"""Pulling a model: whole or not at all, once, and with plain words when it fails."""

import hashlib
import shutil
import subprocess
import zipfile
from dataclasses import replace

import pytest

np = pytest.importorskip("numpy")
gguf = pytest.importorskip("gguf")
pytest.importorskip("torch")

from engine.config import EngineConfig  # noqa: E402
from engine.model import load_tokenizer, pull  # noqa: E402
from engine.model import pull as pull_function  # noqa: E402, F401
from engine.model.gguf_folder import convert, unpermute  # noqa: E402
from engine.model.llama_config import read_config  # noqa: E402
from engine.model.pull import MODELS, PulledModel, PullError, is_pulled, listing, model_folder, pulled  # noqa: E402
from engine.model.weights import load_tensors  # noqa: E402

pytestmark = pytest.mark.torch
