"""`BaseFiles`: files of the base checkpoint that every weight version repeats: config, tokenizer, prediction layers."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from storage.digests import tensor_digests
from storage.weights.files import INDEX, TensorView, open_shard, write_shard
from storage.weights.prediction_layers import prediction_tensors
from storage.weights.shards import Shard

MANIFEST = "manifest.json"
CONFIG = "config.json"
_SIDE_FILES = (".json", ".jinja", ".txt", ".model", ".tiktoken")


class BaseFiles:
    """The base's files, copied once to the folder `kept`, and linked into each version.

    base: HF folder; without it there are no such files.
    """

    def __init__(self, kept: Path, base: str | Path | None, *, durable: bool) -> None:
        self._kept, self._base, self._durable = kept, Path(base) if base else None, durable
        self._written: tuple[frozenset[str], list[Shard]] | None = None

    @functools.cached_property
    def side_files(self) -> dict[str, str]:
        """sha256 of the base's files by name. They are copied, so that later edits have no effect."""
        if self._base is None:
            return {}
        kept = self._kept
        kept.mkdir(parents=True, exist_ok=True)
        names = sorted(
            path.name
            for path in self._base.iterdir()
            if path.suffix in _SIDE_FILES and path.name not in (INDEX, MANIFEST)
        )
        for name in names:
            if not (kept / name).exists():
                temp = kept / f".{name}.{os.getpid()}"
                shutil.copyfile(self._base / name, temp)
                os.replace(temp, kept / name)
        return {name: hashlib.sha256((kept / name).read_bytes()).hexdigest() for name in names}

    def link_side_files(self, folder: Path) -> dict[str, str]:
        """Link config and tokenizer files into a version; return their sha256 (hex) by name."""
        for name in self.side_files:
            _link(self._kept / name, folder / name)
        return self.side_files

    def link_carried(self, folder: Path, trained: frozenset[str]) -> list[Shard]:
        """Link the tensors of the base that are not `trained` into a version; return their file, if there are any."""
        for shard in self.carried(trained):
            _link(self._kept / shard.file, folder / shard.file)
        return self.carried(trained)

    def carried(self, trained: frozenset[str]) -> list[Shard]:
        """Return the file of the base's tensors that are not `trained`, if there are any."""
        if self._written is None or self._written[0] != trained:
            self._written = trained, self._keep_carried(trained)
        return self._written[1]

    def _keep_carried(self, trained: frozenset[str]) -> list[Shard]:
        """Copy these tensors to one file, so that later edits have no effect. A file of an earlier process is kept."""
        if self._base is None or CONFIG not in self.side_files:
            return []
        kept = self._kept
        every = self._keep(kept / "carried", functools.partial(prediction_tensors, kept / CONFIG, self._base))
        rest = {name: tensor for name, tensor in every.items() if name not in trained}
        if not rest:
            return []
        name = "carried"
        if rest.keys() != every.keys():
            name = f"carried-{hashlib.sha256(' '.join(sorted(rest)).encode()).hexdigest()[:12]}"
            rest = self._keep(kept / name, lambda: rest)
        return [Shard(name, tensor_digests(rest.items()))]

    def _keep(self, path: Path, make: Callable[[], dict[str, TensorView]]) -> dict[str, TensorView]:
        """Write tensors to a file, unless it exists or there are none; return the mapped tensors of the file."""
        if not path.exists():
            if not (tensors := make()):
                return {}
            temp = path.with_name(f".{path.name}.{os.getpid()}")
            temp.unlink(missing_ok=True)
            write_shard(temp, tensors, durable=self._durable)
            os.replace(temp, path)
        return dict(open_shard(path))


def state_of(base: str | Path | None) -> str:
    """Return a digest of the names, sizes and times of a base checkpoint's files."""
    files = sorted(Path(base).iterdir()) if base else []
    stats = [(path.name, path.stat()) for path in files]
    text = "\n".join(f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in stats)
    return hashlib.sha256(f"{base}\n{text}".encode()).hexdigest()[:12]


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)
