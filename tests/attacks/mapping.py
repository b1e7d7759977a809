"""Bytes as the readers see a file: mapped memory without a file."""

import mmap

import numpy as np

from workbench.checkpoint.paths import MappedFile


def mapped(data, name="file"):
    memory = mmap.mmap(-1, len(data))
    memory.write(data)
    return MappedFile(name=name, map=memory, data=np.frombuffer(memory, np.uint8))


def mutants(sound, count, seed):
    """Yield `count` random changes of a sound file: bytes, bits, numbers at the edge, cuts, copies, growth."""
    random = np.random.default_rng(seed)
    edges = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
    for _ in range(count):
        data = bytearray(sound)
        for _ in range(int(random.integers(1, 4))):
            at = int(random.integers(0, max(1, len(data))))
            match int(random.integers(0, 7)):
                case 0:
                    data[at : at + 1] = bytes([int(random.integers(0, 256))])
                case 1:
                    data[at : at + 1] = bytes([data[at] ^ (1 << int(random.integers(0, 8)))]) if data else b""
                case 2:
                    width = int(random.choice([1, 2, 4, 8]))
                    edge = edges[int(random.integers(0, len(edges)))] & ((1 << 8 * width) - 1)
                    data[at : at + width] = edge.to_bytes(width, "little")
                case 3:
                    del data[at:]
                case 4:
                    del data[at : at + int(random.integers(1, 40))]
                case 5:
                    data[at:at] = data[at : at + int(random.integers(1, 40))]
                case 6:
                    data += bytes(random.integers(0, 256, int(random.integers(1, 80)), dtype=np.uint8))
        yield bytes(data) or b"\0"
