"""Texts of others, made fit to be shown: a Node's words reach an operator's terminal, which obeys control characters."""

from __future__ import annotations

from typing import Any

REPLACEMENT = "\ufffd"
# C0, DEL and C1 (an OSC begins with ESC ] or U+009D alone). Tab and newline are how people lay out what they say.
_CONTROLS = {code: REPLACEMENT for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}


def plain(text: str) -> str:
    """``text`` with every control character but tab and newline replaced; as many characters as before."""
    return text.translate(_CONTROLS)


def plain_tree(data: Any) -> Any:
    """Plain JSON ``data`` with all texts in it made :func:`plain`; the keys are ours."""
    if isinstance(data, str):
        return plain(data)
    if isinstance(data, list):
        return [plain_tree(item) for item in data]
    return {key: plain_tree(value) for key, value in data.items()} if isinstance(data, dict) else data
