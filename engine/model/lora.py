"""LoRA adapters on a packed batch (ENGINE E39): to the rows of each adapter, two thin products are added.

::

    rows        base base | sql sql sql | chat        a batch, rows grouped by adapter
    y = W x     [----------- one product -----------]
                          y += B A x     y += B A x

The model multiplies projections over the same input as one matrix. An adapter's matrices are laid out in the
same way, so that what it adds falls on the right slices: all its A of such a product below each other, all
its B (which contain the scaling) along a diagonal, with zeros where a projection is not adapted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.model.decoder_config import DecoderConfig, ModelError
from engine.model.linear import linear
from engine.model.peft_folder import PRODUCTS, Module, PeftAdapter, read_adapter
from engine.model.weights import as_tensor, expected_shapes


@dataclass(frozen=True, slots=True)
class _Delta:
    """``b @ a @ x`` is added: ``a`` [R, in], ``b`` [out, R], R the sum of the ranks."""

    a: torch.Tensor
    b: torch.Tensor


class Lora:
    """An adapter made ready for one model, in its precision."""

    def __init__(self, adapter: PeftAdapter, config: DecoderConfig, dtype: torch.dtype) -> None:
        heights = {
            name.split(".")[-2]: shape[0]
            for name, shape in expected_shapes(config).items()
            if name.startswith("model.layers.0.")
        }
        self._deltas: dict[tuple[int, str], _Delta] = {}
        for layer in sorted({module.layer for module in adapter.modules}):
            mine = {module.target: module for module in adapter.modules if module.layer == layer}
            for product, targets in PRODUCTS.items():
                if not mine.keys().isdisjoint(targets):
                    delta = _delta([(mine.get(target), heights[target]) for target in targets], dtype)
                    self._deltas[layer, product] = delta

    def add(self, layer: int, product: str, x: torch.Tensor, y: torch.Tensor) -> None:
        """Add what the adapter makes of ``x`` [rows, in] to ``y`` [rows, out], in place."""
        delta = self._deltas.get((layer, product))
        if delta is not None:
            y += linear(linear(x, delta.a), delta.b)


@dataclass(frozen=True, slots=True)
class Share:
    """Rows of a packed batch that one adapter works on."""

    rows: slice
    adapter: Lora


def adapt(
    shares: Iterable[Share], layer: int, product: str, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    """``y`` [T, out], the model's product of ``x`` [T, in], with every adapter's addition."""
    for share in shares:
        share.adapter.add(layer, product, x[share.rows], y[share.rows])
    return y


def load(folder: str, digest: str, config: DecoderConfig, dtype: torch.dtype) -> Lora:
    """The adapter in ``folder``, if that still holds the content with this digest. Raises ModelError."""
    adapter = read_adapter(Path(folder), expected_shapes(config), config.hidden)
    if adapter.digest != digest:
        raise ModelError(
            [f"{folder}: its content has changed since it was registered; register it again, or put it back"]
        )
    with torch.inference_mode():
        return Lora(adapter, config, dtype)


def _delta(parts: list[tuple[Module | None, int]], dtype: torch.dtype) -> _Delta:
    """``parts``: each projection's module, if it is adapted, and its outputs."""
    modules = [module for module, _ in parts if module is not None]
    b = torch.zeros(sum(height for _, height in parts), sum(module.rank for module in modules))
    row = column = 0
    for module, height in parts:
        if module is not None:
            here = b[row : row + height, column : column + module.rank]
            torch.mul(as_tensor(module.b).float(), module.scaling, out=here)
            column += module.rank
        row += height
    return _Delta(torch.cat([as_tensor(module.a).float() for module in modules]).to(dtype), b.to(dtype))
