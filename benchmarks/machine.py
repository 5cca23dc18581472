"""What machine a benchmark ran on."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

_PACKAGES: Final = ("mergepipe", "numpy", "ml_dtypes", "blake3", "msgspec", "safetensors", "numba")
_CPU_INFO: Final = Path("/proc/cpuinfo")


def machine(folder: Path, peer: Path | None = None) -> dict[str, Any]:
    """Processor, cores, memory (bytes), the disk that holds `folder`, kernel, and versions; of mergekit too.

    `peer` is the interpreter of mergekit's environment.
    """
    packages = {name: found for name in _PACKAGES if (found := _version(name)) is not None}
    if peer is not None:
        packages["mergekit"] = _version_there(peer, "mergekit")
    return {
        "processor": _processor(),
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "disk": disk(folder),
        "system": platform.system(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": packages,
    }


def described(about: dict[str, Any]) -> str:
    """The machine in one line."""
    disk_ = about["disk"]
    model = f" {disk_['model']}" if disk_["model"] else ""
    return (
        f"{about['processor']}, {about['cores']} cores, {about['memory_bytes'] / 2**30:.0f} GiB; "
        f"{disk_['file_system']} on{model} {disk_['device']}; {about['system']} {about['kernel']}; "
        f"Python {about['python']}, " + ", ".join(f"{name} {each}" for name, each in about["versions"].items())
    )


def disk(folder: Path) -> dict[str, Any]:
    """File system, device, model, and whether it rotates, of the disk that holds a folder; "" or None if unknown."""
    number = folder.stat().st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    whole = device if (device / "queue").is_dir() else device.parent  # of a partition, the disk it is on
    rotates = _text(whole / "queue" / "rotational")
    return {
        "file_system": _file_system(folder),
        "device": device.name if device.is_dir() else "",
        "model": _text(whole / "device" / "model"),
        "rotational": rotates == "1" if rotates else None,
    }


def _file_system(folder: Path) -> str:
    """The type of the mount that holds a folder: the one with the longest path above it."""
    place = folder.resolve()
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    above = [(len(Path(at).parts), kind) for _, at, kind, *_ in mounts if place.is_relative_to(at)]
    return max(above, key=lambda each: each[0], default=(0, ""))[1]


def _processor() -> str:
    named = [line.partition(":")[2].strip() for line in _text(_CPU_INFO).splitlines() if line.startswith("model name")]
    return named[0] if named else platform.processor()


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _version_there(python: Path, name: str) -> str:
    ask = f"from importlib.metadata import version; print(version({name!r}))"
    return subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
