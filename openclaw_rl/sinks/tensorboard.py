"""TensorBoard's event files, written directly: the format is small, and its package is not.

A file is a row of records: length, its checksum, data, its checksum. The data are protocol-buffer
messages, of which scalars need five fields.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

_POLYNOMIAL = 0x82F63B78


def _make_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _make_table()


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


def _masked(data: bytes) -> bytes:
    value = crc32c(data)
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def _bytes(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _event(step: int, body: bytes) -> bytes:
    data = b"\x09" + struct.pack("<d", time.time()) + b"\x10" + _varint(step) + body
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


class TensorBoardSink:
    """In ``tensorboard/`` of the data folder: ``tensorboard --logdir ~/.openclaw-rl/tensorboard``."""

    def __init__(self, home: Path) -> None:
        folder = home / "tensorboard"
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self._file = (folder / name).open("ab")
        self._write(_event(0, _bytes(3, b"brain.Event:2")))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        values = b"".join(
            _bytes(1, _bytes(1, name.encode()) + b"\x15" + struct.pack("<f", value))
            for name, value in metrics.items()
        )
        self._write(_event(step, _bytes(5, values)))

    def _write(self, record: bytes) -> None:
        self._file.write(record)
        self._file.flush()

    def close(self) -> None:
        self._file.close()
