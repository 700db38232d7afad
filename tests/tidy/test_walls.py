"""The import walls of the house as a test: who may import whom, and for each ban the reason and the way to go instead."""

from __future__ import annotations

import sys

import pytest

from .source import GENERATED, PACKAGE, Import, imports, modules, room, under

ROOMS = {"domain", "actors", "bridge", "wire", "storage", "control", "nodeside", "web", "app"}

# room -> what of ours it may import besides itself. Anything else is forbidden, for the reason in WHY.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "domain": (),
    "actors": (),
    "bridge": (),
    "wire": ("tuneplane.domain", "tuneplane.actors", "tuneplane.bridge"),
    "storage": ("tuneplane.domain", "tuneplane.bridge"),
    "control": ("tuneplane.domain", "tuneplane.actors", "tuneplane.wire"),
    "nodeside": ("tuneplane.domain", "tuneplane.actors", "tuneplane.wire"),
    "web": ("tuneplane.domain", "tuneplane.actors", "tuneplane.control.api"),
    "app": ("tuneplane",),
}
WHY: dict[str, str] = {
    "domain": "rules stay pure and testable: what a rule needs comes in as an argument, what it wants done goes out as an action",
    "actors": "the kernel knows nothing of Fleets, so that a second project could use it: put product code on top of it",
    "bridge": "the border to asyncio knows sockets and rows, not the product: hand it functions and values",
    "wire": "what crosses the socket is independent of who uses it: hand frames (domain.frames) to a link",
    "storage": "rows never leave storage and actors never enter it: implement a port of domain.ports",
    "control": "control takes the ports of domain, so that the simulator can stand in: let app hand the storage in",
    "nodeside": "a Node holds no control-plane code: what both need belongs in domain",
    "web": "web shows and asks: go through control.api and refs, let app wire the rest",
    "app": "",
}
STRICT_PURE = {  # domain: standard library and attrs only, and of the library only what has no clock, chance or I/O
    "random": "randomness inside a rule cannot be replayed: take entropy as an argument",
    "secrets": "randomness inside a rule cannot be replayed: take entropy as an argument",
    "time": "a clock inside a rule cannot be replayed: take the time as an argument",
    "socket": "rules do no I/O",
    "subprocess": "rules do no I/O",
    "os": "rules do no I/O",
    "pathlib": "rules do no I/O",
    "logging": "rules do not log: return a reason",
    "threading": "rules have no concurrency",
}
ASYNCIO_SIDE = ("asyncio", "trio_asyncio", "grpclib", "asyncpg", "triopg", "aiohttp", "anyio")
TABLE = sorted(MAY_IMPORT)


def _all_imports(of: str) -> list[Import]:
    return [found for path in modules() if path.parent != PACKAGE and room(path) == of for found in imports(path)]


def _report(broken: list[Import], reason: str) -> str:
    return "\n".join(map(str, broken)) + f"\nforbidden: {reason}"


def test_rooms_on_disk_are_the_rooms_of_the_house() -> None:
    found = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert found == ROOMS, "a new room needs a row in the arrow table first"


@pytest.mark.parametrize("name", TABLE)
def test_room_imports_only_what_its_arrows_allow(name: str) -> None:
    allowed = (f"tuneplane.{name}", *MAY_IMPORT[name])
    ours = [found for found in _all_imports(name) if under(found.module, "tuneplane")]
    broken = [found for found in ours if not under(found.module, *allowed) and found.module != "tuneplane.__version__"]
    assert not broken, _report(broken, WHY[name])


def test_actors_and_bridge_reach_wire_only_through_the_link() -> None:
    """Arrow table: wire may import actors and bridge from its transport modules only, the codec and session stay pure."""
    pure = {"codec.py", "session.py", "machine.py"}
    broken = [
        found
        for found in _all_imports("wire")
        if found.path.name in pure and under(found.module, "tuneplane.actors", "tuneplane.bridge", "trio")
    ]
    assert not broken, _report(broken, "the session machine and the codec are sans-IO: the link runs them on a stream")


def test_protobuf_never_leaves_wire() -> None:
    broken = [
        found
        for path in modules()
        if path.parent != PACKAGE and room(path) != "wire"
        for found in imports(path)
        if under(found.module, "tuneplane.wire.pb", "google.protobuf")
    ]
    assert not broken, _report(broken, "protobuf never leaves wire: exchange the values of domain.frames")


def test_asyncio_stays_behind_the_bridge() -> None:
    broken = [
        found
        for path in modules(generated=False)
        if path.parent != PACKAGE and room(path) != "bridge"
        for found in imports(path)
        if under(found.module, *ASYNCIO_SIDE)
    ]
    assert not broken, _report(broken, "asyncio and its libraries live in bridge/ only: ask bridge for a Trio-flavoured function")


def test_generated_code_imports_the_asyncio_side_only_in_its_service_stubs() -> None:
    found = [item for path in GENERATED.rglob("*.py") if not path.name.endswith("_grpc.py") for item in imports(path)]
    broken = [item for item in found if under(item.module, *ASYNCIO_SIDE)]
    assert not broken, _report(broken, "messages are plain protobuf; only *_grpc.py stubs, which bridge runs, name grpclib")


def test_domain_imports_the_standard_library_and_attrs_only() -> None:
    broken = []
    for found in _all_imports("domain"):
        top = found.module.split(".")[0]
        fits = top in ("attrs", "tuneplane", "__future__") or (top in sys.stdlib_module_names and top not in STRICT_PURE)
        if not fits and not (top == "cattrs" and found.path.name == "codec.py"):
            broken.append(found)
    reasons = {STRICT_PURE.get(found.module.split(".")[0], "only attrs beyond the standard library (cattrs in codec)") for found in broken}
    assert not broken, _report(broken, "; ".join(sorted(reasons)))


def test_actor_kernel_imports_trio_and_attrs_only() -> None:
    allowed = {"trio", "attrs", "structlog", "outcome", "tuneplane", "__future__"}
    tops = [(found, found.module.split(".")[0]) for found in _all_imports("actors")]
    broken = [found for found, top in tops if top not in allowed and top not in sys.stdlib_module_names]
    assert not broken, _report(broken, "the kernel stands on Trio and attrs alone, so that a second project could use it")


def test_settings_are_read_in_app_only() -> None:
    """House: app is the only place that reads settings."""
    others = [path for path in modules() if path.parent != PACKAGE and room(path) != "app"]
    broken = [found for path in others for found in imports(path) if found.module == "os.environ"]
    assert not broken, _report(broken, "app reads the environment once and hands values down")
