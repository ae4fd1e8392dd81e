"""Writes the ELF kernel inside a compressed one: an emulator boots it without unpacking it slowly.

vmlinux.py VMLINUZ VMLINUX
"""

import re
import subprocess
import sys
from pathlib import Path

UNPACKERS = {
    b"\xfd7zXZ\x00": ("xz", "-dc", "--single-stream"),
    b"\x28\xb5\x2f\xfd": ("zstd", "-dc"),
}


def elf_inside(image: bytes) -> bytes:
    """The first ELF file among all that unpacks; what follows it in the image is ignored."""
    for magic, command in UNPACKERS.items():
        for match in re.finditer(re.escape(magic), image):
            unpacked = subprocess.run(
                command, input=image[match.start() :], capture_output=True, check=False
            ).stdout
            if unpacked.startswith(b"\x7fELF"):
                return unpacked
    sys.exit("no ELF kernel found: packed by neither xz nor zstd")


if __name__ == "__main__":
    packed, unpacked = map(Path, sys.argv[1:])
    unpacked.write_bytes(elf_inside(packed.read_bytes()))
