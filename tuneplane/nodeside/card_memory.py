"""What a Node remembers of its cards: one file, written whole or not at all, before anything is granted by it (L-D1, L-D12)."""

from __future__ import annotations

import json
from pathlib import Path

from attrs import Factory, frozen

from tuneplane.domain import codec
from tuneplane.domain.card_health import Fault
from tuneplane.domain.errors import InvalidInput
from tuneplane.domain.inventory import CardBinding
from tuneplane.wire.card_codec import decode_bindings, decode_faults, encode_bindings, encode_faults

from .files import write_durably

FILE_NAME = "cards.json"
VERSION = 1
MOST_BYTES = 1 << 20  # a binding, an address and a few faults of each card are some kilobytes


@frozen(kw_only=True)
class CardMemory:
    """``kernel_boot`` and ``kernel_sequence``: up to where the kernel's log was looked through when a fault last changed."""

    version: int = VERSION
    bindings: tuple[CardBinding, ...] = ()  # by index; once made, only an operator's acceptance changes one
    buses: dict[str, str] = Factory(dict)  # PCI address -> UUID, of the cards ever seen there
    faults: tuple[Fault, ...] = ()
    kernel_boot: str = ""
    kernel_sequence: int = -1


def load_memory(state_dir: Path) -> CardMemory:
    """An empty one where there is no file. OSError; InvalidInput for a file that is not ours: it is left alone."""
    path = state_dir / FILE_NAME
    try:
        with path.open("rb") as file:
            data = json.loads(file.read(MOST_BYTES))
    except FileNotFoundError:
        return CardMemory()
    except (ValueError, RecursionError) as error:
        raise InvalidInput(str(path), f"is not readable: {error}") from None
    if not isinstance(data, dict) or data.get("version") != VERSION:
        raise InvalidInput(str(path), f"has a version that this Node does not know (it knows {VERSION})")
    memory = codec.decode(CardMemory, data, str(path))
    _check(memory, path)
    return memory


def _check(memory: CardMemory, path: Path) -> None:
    """What no frame can carry was not written here, and would end every session."""
    try:
        decode_bindings(encode_bindings(memory.bindings))
        decode_faults(encode_faults(tuple(one.fault for one in memory.faults)))
    except ValueError as error:  # a field out of its bounds: protobuf's word or ours
        raise InvalidInput(str(path), f"holds what cannot be: {error}") from None


def save_memory(state_dir: Path, memory: CardMemory) -> None:
    """Durable when it returns; OSError leaves the old one in place."""
    write_durably(state_dir / FILE_NAME, json.dumps(codec.encode(memory), indent=1).encode(), point="node.cards.write")
