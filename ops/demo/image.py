"""The demo's container image, built without a base image, a container engine or a network name of its own.

The machine's own Python, the shared libraries it needs (as ``ldd`` names them) and wheels from the package index
become one layer of a ``docker-archive``, which every engine and registry tool reads. Everything in it is sorted and
dated alike, so that the same inputs give the same digest. The archive is cached under its inputs' digest.

    /opt/python   interpreter and standard library    /opt/site   wheels
    /opt/lib      shared libraries                    /workspace  the training script
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

WHEELS = ("scikit-learn",)  # brings numpy, scipy, joblib, threadpoolctl
LAYOUT = 2  # part of the cache key: raise when this module changes what it writes
LEFT_OUT = {"__pycache__", "tests", "test", "idlelib", "ensurepip", "tkinter", "turtledemo", "lib2to3", "site-packages", "dist-packages"}
DIRECTORIES = ("tmp", "proc", "sys", "dev", "etc", "run", "workspace", "usr/bin", "bin")
ENVIRONMENT = {
    "PATH": "/opt/python/bin:/usr/bin:/bin",
    "PYTHONHOME": "/opt/python",
    "PYTHONPATH": "/opt/site",
    "LD_LIBRARY_PATH": "/opt/lib",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OPENBLAS_NUM_THREADS": "1",  # the container has a CPU limit; more threads only fight over it
}
Say = Callable[[str], None]


def demo_image(cache: Path, scripts: list[Path], say: Say, wheels: tuple[str, ...] = WHEELS, *, compile_but: str = "") -> Path:
    """The archive for ``scripts`` (copied to /workspace); built when the cache has none. Raises CalledProcessError.

    ``compile_but``: with byte code, for programs that start many processes, but for paths that match this expression.
    """
    key = _inputs_digest(scripts, (*wheels, compile_but) if compile_but else wheels)
    archive = cache / f"image-{key[:16]}.tar"
    if archive.exists():
        say(f"demo image: already built ({archive.stat().st_size >> 20} MiB)")
        return archive
    cache.mkdir(parents=True, exist_ok=True)
    rootfs = cache / f"rootfs-{key[:16]}"
    shutil.rmtree(rootfs, ignore_errors=True)
    say(f"demo image: copying Python {platform.python_version()}")
    _copy_python(rootfs)
    say(f"demo image: installing {', '.join(wheels)} from wheels")
    _install_wheels(rootfs / "opt/site", wheels)
    _copy_libraries(rootfs)
    _finish(rootfs, scripts)
    if compile_but:
        say("demo image: compiling")
        _compile(rootfs, compile_but)
    say("demo image: packing")
    write_archive(rootfs, archive, tag="tuneplane/demo:1")
    shutil.rmtree(rootfs)
    say(f"demo image: {archive.stat().st_size >> 20} MiB")
    return archive


def _inputs_digest(scripts: list[Path], wheels: tuple[str, ...]) -> str:
    hasher = hashlib.sha256(f"{LAYOUT} {sys.version} {platform.machine()} {wheels}".encode())
    for script in scripts:
        hasher.update(script.name.encode() + b"\0" + script.read_bytes())
    return hasher.hexdigest()


def _copy_python(rootfs: Path) -> None:
    home = rootfs / "opt/python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (home / "bin").mkdir(parents=True)
    executable = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    shutil.copy(executable, home / "bin" / version)
    for alias in ("python3", "python"):
        (home / "bin" / alias).symlink_to(version)
    standard_library = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix, "base": sys.base_prefix}))

    def left_out(directory: str, names: list[str]) -> set[str]:
        return {name for name in names if name in LEFT_OUT or (directory == str(standard_library) and name.startswith("config-"))}

    shutil.copytree(standard_library, home / "lib" / version, ignore=left_out, ignore_dangling_symlinks=True)


def _install_wheels(site: Path, wheels: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "pip", "install", "-qq", "--only-binary=:all:", "--no-compile", "--target", str(site), *wheels]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    for directory in [path for path in site.rglob("*") if path.is_dir() and path.name in ("tests", "__pycache__")]:
        shutil.rmtree(directory, ignore_errors=True)


def _compile(rootfs: Path, leave: str) -> None:
    """Beside its source, without times or paths of this machine. What does not compile stays as it is."""
    options = ["-qq", "-j", "0", "-x", leave, "-s", str(rootfs), "-p", "/", "--invalidation-mode", "unchecked-hash"]
    command = [sys.executable, "-m", "compileall", *options, str(rootfs / "opt/python/lib"), str(rootfs / "opt/site")]
    subprocess.run(command, check=False, stdin=subprocess.DEVNULL)


def _copy_libraries(rootfs: Path) -> None:
    """All shared libraries outside the rootfs that anything in it needs, and the loader where programs name it."""
    target = rootfs / "opt/lib"
    target.mkdir(parents=True)
    programs = [path for path in rootfs.rglob("*") if path.is_file() and not path.is_symlink() and _is_elf(path)]
    for library in sorted(_needed_by(programs)):
        if rootfs.resolve() in library.resolve().parents:
            continue
        shutil.copy(library.resolve(), target / library.name)
    for loader in sorted({*Path("/lib64").glob("ld-linux-*"), *Path("/lib").glob("ld-linux-*")}):
        place = rootfs / loader.relative_to("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(loader.resolve(), place)


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _needed_by(programs: list[Path]) -> Iterator[Path]:
    for program in programs:
        listing = subprocess.run(["ldd", str(program)], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        for line in listing.stdout.splitlines():
            path = line.partition("=>")[2].strip().split(" (")[0]
            if path.startswith("/"):
                yield Path(path)


def _finish(rootfs: Path, scripts: list[Path]) -> None:
    for name in DIRECTORIES:
        (rootfs / name).mkdir(parents=True, exist_ok=True)
    (rootfs / "tmp").chmod(0o1777)
    (rootfs / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/false\nworker:x:1000:1000::/:/bin/false\n")
    (rootfs / "etc/group").write_text("root:x:0:\nworker:x:1000:\n")
    for script in scripts:
        shutil.copy(script, rootfs / "workspace" / script.name)


def write_archive(rootfs: Path, archive: Path, tag: str) -> None:
    """``rootfs`` as a one-layer docker-archive at ``archive``, whole or not there."""
    layer = archive.with_suffix(".layer")
    with tarfile.open(layer, "w") as tar:
        for path in sorted(rootfs.rglob("*")):
            tar.add(path, arcname=str(path.relative_to(rootfs)), recursive=False, filter=_plain)
    with layer.open("rb") as file:
        diff_id = hashlib.file_digest(file, "sha256").hexdigest()
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    config = json.dumps(
        {
            "architecture": architecture,
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": {"Env": [f"{k}={v}" for k, v in sorted(ENVIRONMENT.items())], "Cmd": ["python3"], "WorkingDir": "/workspace"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff_id}"]},
            "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "ops/demo/image.py"}],
        },
        sort_keys=True,
    ).encode()
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": name, "RepoTags": [tag], "Layers": [f"{diff_id}/layer.tar"]}]).encode()
    partial = archive.with_suffix(".partial")
    with tarfile.open(partial, "w") as tar:
        for member, data in ((name, config), ("manifest.json", manifest)):
            info = tarfile.TarInfo(member)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        tar.add(layer, arcname=f"{diff_id}/layer.tar", filter=_plain)
    layer.unlink()
    os.replace(partial, archive)


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = 0
    info.mode |= 0o044 | (0o011 if info.isdir() or info.mode & 0o100 else 0)
    return info
