"""What a benchmark reports."""

from __future__ import annotations

from statistics import median

from attrs import field, frozen


@frozen(kw_only=True)
class Figure:
    """One number. ``budget`` is what it is held to: at least, or with ``lower_is_better`` at most."""

    name: str
    value: float
    unit: str
    budget: float | None = None
    lower_is_better: bool = False
    detail: dict[str, object] = field(factory=dict)

    @property
    def holds(self) -> bool:
        if self.budget is None:
            return True
        return self.value <= self.budget if self.lower_is_better else self.value >= self.budget

    def as_json(self) -> dict[str, object]:
        told: dict[str, object] = {"figure": self.name, "value": round(self.value, 4), "unit": self.unit}
        if self.budget is not None:
            told |= {"budget": self.budget, "sense": "at most" if self.lower_is_better else "at least", "holds": self.holds}
        return told | ({"detail": self.detail} if self.detail else {})

    def as_text(self) -> str:
        verdict = "" if self.budget is None else f"   budget {self.budget:g}: {'holds' if self.holds else 'MISSED'}"
        return f"{self.name:<40} {self.value:>12,.3f} {self.unit}{verdict}"


def median_ratio(above: list[float], below: list[float]) -> float:
    """The median of the rounds' own ratios: what disturbs a round disturbs both sides of it."""
    return median(a / b for a, b in zip(above, below, strict=True))
