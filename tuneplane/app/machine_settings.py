"""What settings of a machine say: its GPUs by index or by UUID (R-ENR-09, L-D1, L-D6), its ports, its container runtime.

Each function reads one text and raises ValueError with the rule that it breaks.
"""

from __future__ import annotations

import re

from tuneplane.domain.card_grants import why_not_instance
from tuneplane.domain.inventory import MOST_CARDS

UUID = re.compile(r"(GPU|MIG)-[A-Za-z0-9][A-Za-z0-9-]{0,100}")  # as nvidia-smi -L spells cards and MIG instances


def gpu_indexes(text: str | None) -> tuple[int, ...] | None:
    """Unset: None, not declared. Empty: (), a CPU-only Node; () too when the cards are named by UUID. Raises ValueError."""
    if text is None:
        return None
    words = _words(text)
    if _are_uuids(words):
        return ()
    if not all(word.isascii() and word.isdigit() and len(word) <= 3 for word in words) or len({int(word) for word in words}) != len(words):
        raise ValueError("must be different GPU indexes such as 0,1,2, or UUIDs as nvidia-smi -L shows them, or empty for a CPU-only Node")
    return tuple(int(word) for word in words)


def gpu_uuids(text: str | None) -> tuple[str, ...]:
    """By UUID a grant means the same card wherever it is. Raises ValueError."""
    words = _words(text or "")
    if len(words) > MOST_CARDS or len(set(words)) != len(words):
        raise ValueError(f"must name at most {MOST_CARDS} GPUs, each once")
    if not _are_uuids(words):
        return ()
    for word in words:
        why = why_not_instance(word)
        if why is None and UUID.fullmatch(word) is None:
            why = f"{word!r} is no UUID of a card or MIG instance as nvidia-smi -L shows it (indexes and UUIDs do not mix)"
        if why is not None:
            raise ValueError(f"cannot be used: {why}")
    return tuple(words)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _are_uuids(words: list[str]) -> bool:
    return any(word.startswith(("GPU-", "MIG-")) for word in words)


def port_range(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    if match is None or not 1024 <= int(match[1]) <= int(match[2]) <= 65535:
        raise ValueError("must look like 20000-20999, within 1024-65535")
    return int(match[1]), int(match[2])


def runtime_name(text: str) -> str:
    if text not in ("docker", "podman"):
        raise ValueError("must be docker, podman or empty")
    return text
