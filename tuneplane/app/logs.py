"""Logging of a process: structlog, one JSON object a line on standard error, with secrets taken out (R-CRD-05)."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

# API token, Join Token, Node credential, attempt read credential: the prefixes exist so that a leak is recognised
# so does the password of a database address, which libraries like to quote in their errors
SECRET = re.compile(r"\btp[ujna]_[A-Za-z0-9_-]{8,}|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)")
HIDDEN = "[secret]"
MOST_DEPTH = 6  # log values are flat facts; deeper than this is shown as text
# their own INFO lines repeat what we log, and h2's and httpcore's DEBUG lines carry headers, so credentials
NOISY = ("httpx", "httpcore", "hpack", "h2", "hypercorn", "grpclib", "asyncio", "trio-asyncio")


def redact(text: str) -> str:
    """``text`` with every secret of ours replaced."""
    return SECRET.sub(HIDDEN, text)


def redact_event(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """structlog processor: every string of the event, nested ones too."""
    for key in list(event):
        event[key] = _redacted(event[key], MOST_DEPTH)
    return event


def _redacted(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return redact(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if depth and isinstance(value, dict):
        return {redact(str(key)): _redacted(item, depth - 1) for key, item in value.items()}
    if depth and isinstance(value, (list, tuple, set, frozenset)):
        return [_redacted(item, depth - 1) for item in value]
    return redact(str(value))


def install_logging(process: str, level: int = logging.INFO) -> None:
    """Send structlog and the standard library's logging to standard error as redacted JSON lines naming ``process``."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.StackInfoRenderer(),
                structlog.processors.format_exc_info,
                _name_process(process),
                redact_event,
                structlog.processors.JSONRenderer(sort_keys=True, ensure_ascii=False),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)


def _name_process(process: str) -> Any:
    def add(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event["process"] = process
        return event

    return add
