"""What each provider's cache promises, as data (ATTRIBUTION A7). Rules never branch on a provider's name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

VERSION = "2026.1"

Life = tuple[float, float | None]
"""``(sure, max)`` in s: kept for certain up to sure, gone for certain above max (None: never certain)."""

NOISE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Policy:
    """One provider's rules. Tokens, blocks and s.

    ``style``: ``auto`` stores every block of every prompt; ``breakpoint`` stores where a marker stands;
    ``unit`` stores whole prompts and whole prompts with their answers.
    """

    name: str
    style: Literal["auto", "breakpoint", "unit"]
    minimum: int = 0
    """Shorter prefixes are not cached."""
    step: int = 1
    """Reads are multiples of this."""
    life: Mapping[str, Life] = field(default_factory=dict)
    """By retention tier, the default first; empty: nothing is promised."""
    clock: Literal["start", "release"] = "start"
    """When a request counts as a touch (A16)."""
    outputs: bool = False
    """Answers are cached behind their prompts."""
    drawn_token_run: bool = True
    """False: the last token of an answer never went through the model, so it cannot be read (A15)."""
    keyed: bool = False
    """The cache key is part of the domain."""
    lookback: int = 0
    """Components before a marker of the request that are looked at (style breakpoint)."""
    level_params: tuple[str, ...] = ()
    """Parameters whose change loses the message level (A9)."""
    write_lag_s: float = 0.0
    confidence: Literal["exact", "D", "S", "M", "unknown"] = "D"
    """Where the rules come from: documents, a shipped SDK, third-party measurement."""
    version: str = VERSION

    @property
    def floor(self) -> int:
        """Tokens of noise: less than this is neither lost nor changed."""
        return max(self.step, NOISE_TOKENS)

    def life_of(self, tier: str | None) -> Life | None:
        """The life of a retention tier; an unknown or absent name means the default."""
        if not self.life:
            return None
        default = next(iter(self.life.values()))
        return default if tier is None else self.life.get(tier, default)


def headrace(block_size: int = 16, ttl_s: float | None = None) -> Policy:
    """Our own engine, exactly: blocks of ``block_size`` tokens that live ``ttl_s`` after their release."""
    return Policy(
        name="headrace",
        style="auto",
        step=block_size,
        life={} if ttl_s is None else {"default": (ttl_s, ttl_s)},
        clock="release",
        outputs=True,
        drawn_token_run=False,
        confidence="exact",
    )


_ANTHROPIC_LIFE: Mapping[str, Life] = {"5m": (300.0, 300.0), "1h": (3600.0, 3600.0)}

POLICIES: Mapping[str, Policy] = {
    policy.name: policy
    for policy in (
        headrace(),
        Policy("vllm", "auto", step=16, outputs=True),
        Policy("sglang", "auto", outputs=True),
        Policy("tensorrt_llm", "auto", step=64, outputs=True),
        Policy("llamacpp", "auto", outputs=True),
        Policy(
            "openai",
            "auto",
            minimum=1024,
            step=128,
            life={"in_memory": (300.0, 3600.0), "24h": (86_400.0, 86_400.0)},
            keyed=True,
        ),
        Policy(
            "anthropic",
            "breakpoint",
            minimum=1024,
            life=_ANTHROPIC_LIFE,
            lookback=20,
            level_params=("thinking", "tool_choice"),
        ),
        Policy("deepseek", "unit", step=64),
        Policy("mistral", "auto", keyed=True),
        Policy("xai", "auto", step=128, confidence="M"),
        Policy("gemini_implicit", "auto", minimum=4096),
        Policy("moonshot", "auto", step=256, life={"default": (300.0, 1800.0)}, confidence="M"),
    )
}
"""Unknown endpoint: ``UNKNOWN``, which says so in the confidence."""

UNKNOWN = Policy("unknown", "auto", confidence="unknown")
