"""Fit ENGINE E40's cost model to the torch runner on this machine, and say how well it fits.

    python benchmarks/cost_model.py [--model smollm2-135m] [--dtype fp32] [--threads 1] [--repeat 3]

Prints a table of measured and fitted step times, then one JSON line with the terms for
``target.engine.cost`` of a scenario. Run it on an idle machine: the load average stands in the line.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from array import array
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from engine.config import EngineConfig, MemoryConfig
from engine.model import load_runner
from engine.runner.base import Row, Runner, StepPlan

BLOCK = 16
CHUNKS = ((16, 0), (64, 0), (128, 0), (256, 0), (128, 512), (128, 1024), (16, 256))
"""(tokens, start) of single prefill rows."""
DECODES = ((1, 100), (2, 100), (4, 100), (8, 100), (16, 100), (1, 800), (4, 800), (8, 800))
"""(rows, context) of decode steps."""


@dataclass(frozen=True)
class Shape:
    """One kind of step."""

    chunks: tuple[tuple[int, int], ...] = ()
    decodes: tuple[int, int] = (0, 0)

    def terms(self) -> tuple[float, ...]:
        """The factors of a, b, c, d, e (ENGINE E40)."""
        rows, context = self.decodes
        return (
            1.0,
            float(sum(chunk for chunk, _ in self.chunks)),
            float(rows),
            float(rows * context),
            float(sum(chunk * (start + chunk / 2) for chunk, start in self.chunks)),
        )

    def plan(self) -> StepPlan:
        rows, first = [], 1
        for chunk, start in (*self.chunks, *[(1, self.decodes[1])] * self.decodes[0]):
            blocks = -(-(start + chunk) // BLOCK)
            tokens = array("I", (7 + i % 900 for i in range(chunk)))
            table = tuple(range(first, first + blocks))
            rows.append(Row(len(rows), start, tokens, table, samples=True, draw=1))
            first += blocks
        return StepPlan(1, tuple(rows))


SHAPES = (
    *(Shape((chunk,)) for chunk in CHUNKS),
    *(Shape(decodes=decode) for decode in DECODES),
    Shape(((64, 0),), (4, 200)),
    Shape(((128, 128),), (8, 200)),
)


def measure(runner: Runner, shape: Shape, repeat: int) -> float:
    """Seconds of one step: the median of ``repeat`` after one that does not count."""
    plan, times = shape.plan(), []
    for _ in range(repeat + 1):
        began = time.perf_counter()
        runner.execute(plan)
        times.append(time.perf_counter() - began)
    return float(np.median(times[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=5)
    asked = parser.parse_args()
    runner = load_runner(
        EngineConfig(
            model=asked.model, dtype=asked.dtype, threads=asked.threads, memory=MemoryConfig(kv_blocks=2048)
        )
    )
    runner.allocate(2048, BLOCK)
    load = os.getloadavg()[0]
    times = np.array([measure(runner, shape, asked.repeat) for shape in SHAPES])
    # Relative residuals count: a decode step matters as much as a long chunk.
    factors = np.array([shape.terms() for shape in SHAPES])
    terms, _ = nnls(factors / times[:, None], np.ones(len(times)))
    fitted = factors @ terms
    print(f"{'step':44} {'measured':>10} {'fitted':>10} {'error':>7}")
    for shape, real, said in zip(SHAPES, times, fitted, strict=True):
        print(f"{shape!s:44} {real * 1e3:8.1f}ms {said * 1e3:8.1f}ms {said / real - 1:+7.0%}")
    errors = np.abs(fitted / times - 1)
    print(
        json.dumps(
            {
                "model": asked.model,
                "dtype": asked.dtype,
                "threads": asked.threads,
                "cost": {name: float(f"{term:.3g}") for name, term in zip("abcde", terms, strict=True)},
                "error_median": round(float(np.median(errors)), 3),
                "error_max": round(float(errors.max()), 3),
                "load_average": [round(load, 2), round(os.getloadavg()[0], 2)],
            }
        )
    )


if __name__ == "__main__":
    main()
