"""`--fail-above`: limits that turn a measurement into a gate."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import EdgePosError, GateError

# key → (what of the accuracy section, whether smaller is better, the values that it can have)
KEYS = {
    "kl": ("kl_mean", True, 0, math.inf),
    "perplexity": ("perplexity", True, 1, math.inf),
    "change": ("perplexity_change", True, -1, math.inf),
    "top1": ("top1_agreement", False, 0, 1),
    "cosine": ("cosine_mean", False, -1, 1),
    "nearest": ("nearest_agreement", False, 0, 1),
}


@dataclass(frozen=True)
class Gate:
    """Limits by key: kl, perplexity and change (of perplexity) fail above theirs, top1, cosine and nearest below."""

    limits: dict[str, float]

    @classmethod
    def of(cls, text: str | None) -> Gate:
        """From `kl=0.01,top1=0.95`. Raises EdgePosError for an unknown key, one given twice a limit that is no number, or one that the figure cannot have."""
        limits: dict[str, float] = {}
        for part in text.split(",") if text is not None else ():
            key, _, value = (piece.strip() for piece in part.partition("="))
            if key not in KEYS or key in limits:
                raise EdgePosError(f"--fail-above: {key!r} is {'given twice' if key in limits else 'unknown'}; allowed: {', '.join(KEYS)}, each once")
            try:
                limits[key] = float(value)
            except ValueError:
                limits[key] = math.nan
            if not math.isfinite(limits[key]):
                raise EdgePosError(f"--fail-above: {key}={value} has no number; give one, as kl=0.01,top1=0.95")
            _, _, least, most = KEYS[key]
            if not least <= limits[key] <= most:
                allowed = f"{least} to {most}" if most < math.inf else f"at least {least}"
                raise EdgePosError(f"--fail-above: {key}={value} is no value that {key} can have; allowed: {allowed}")
        return cls(limits)

    def failures(self, name: str, accuracy: dict) -> list[str]:
        """What of a bundle's accuracy section is worse than its limit. Raises EdgePosError for a figure that the model does not have."""
        found = []
        for key, limit in self.limits.items():
            figure, small, *_ = KEYS[key]
            value = accuracy.get(figure)
            if value is None:
                raise EdgePosError(f"--fail-above: {name} has no figure {key}; it has {', '.join(k for k, (f, *_) in KEYS.items() if f in accuracy) or 'none'}")
            if not (value <= limit if small else value >= limit):
                found.append(f"{name}: {key} is {value:.6g}, {'above' if small else 'below'} {limit:g}")
        return found

    def check(self, accuracies: dict[str, dict]) -> None:
        """Raise GateError naming every failure, by name of the bundle."""
        found = [line for name, accuracy in accuracies.items() for line in self.failures(name, accuracy)]
        if found:
            raise GateError("; ".join(found))
