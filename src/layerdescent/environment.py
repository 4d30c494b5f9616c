"""What a result depends on beside its recipe: versions and the machine."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("layerdescent", "torch", "transformers", "accelerate", "datasets", "peft")


def describe_environment() -> dict[str, str | int]:
    """Versions, processor, cores and threads, as stored with every result."""
    import torch

    facts: dict[str, str | int] = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            continue
    facts["platform"] = platform.platform()
    facts["machine"] = torch.cuda.get_device_name() if torch.cuda.is_available() else _processor()
    facts["cores"] = os.cpu_count() or 1
    facts["threads"] = torch.get_num_threads()
    return facts


def _processor() -> str:
    """The processor's name; Linux keeps it in /proc, other systems in `platform`."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
