"""One matrix product, in the form that a CPU does fastest.

Measured with torch 2.13 on AVX2 (one thread, matrices of SmolLM2-135M), per product:

- fp32, 2 to 16 rows: MKL takes up to half the time for ``(W xT)T``, which is the same sums;
- bf16 without bf16 instructions: above a few rows, 5 times slower than fp32, and widening the weights
  first costs less than that.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F

_FEW = 16
_WIDEN_FROM = 6


@functools.cache
def bf16_is_native() -> bool:
    """Whether this CPU multiplies bf16 in hardware."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``x`` ``[rows, in]`` times ``weight`` ``[out, in]`` transposed, plus ``bias`` ``[out]``:
    ``[rows, out]`` in x's precision, rounded to it once."""
    rows = x.shape[0]
    if x.dtype == torch.bfloat16:
        if rows >= _WIDEN_FROM and not bf16_is_native():
            wide = None if bias is None else bias.float()
            return F.linear(x.float(), weight.float(), wide).bfloat16()
    elif 1 < rows <= _FEW:
        product = weight @ x.T if bias is None else torch.addmm(bias.unsqueeze(1), weight, x.T)
        return product.T
    return F.linear(x, weight, bias)
