"""Every decoder of bytes that somebody else has written, and what it may raise. Both fuzzers try each of them."""

from __future__ import annotations

import contextlib
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from schemas.codec import decode
from schemas.errors import ConfigError, SchemaError, StorageError
from schemas.foreign import judge
from schemas.inbox import InboxPrompt, InboxQuestion
from schemas.outside_json import read_json
from serve_apps.http.gateway.agents import SessionKeys
from serve_apps.http.gateway.refusals import host_of
from serve_apps.http.gateway.session_views import SealWish, SessionWish
from serve_apps.http.gateway.sources import FILE, FOLDER, Sources
from serve_apps.rollouts.agents.agent_request import BadField, Dialect
from serve_apps.rollouts.agents.dialects import DIALECTS, MESSAGES
from serve_apps.rollouts.agents.reading import Read, Requests
from slime_events.core.telemetry.span import parse_traceparent
from slime_events.loop.prompts.inbox_message import read_message
from slime_events.loop.prompts.outside import ITEMS, read_line
from storage.archive.manifest import ManifestChain, SegmentManifest, manifest_name, to_json
from storage.archive.segment import Segment, SegmentRecord, compress, decompress, pack_raw
from storage.jetstream.address import read_credentials
from storage.object_store import ObjectFolder
from storage.weights.files import open_shard
from tests.golden.log_file import read_records

RECORDS = tuple(read_records(Path(__file__).parents[1] / "golden" / "v5.slimelog"))
CHAT = b'{"model": "m", "messages": [{"role": "user", "content": "a"}], "stream": true, "max_tokens": 4}'


@dataclass(frozen=True, slots=True)
class Decoder:
    """raises: what says that the bytes are wrong. seeds: right ones, which a fuzzer changes."""

    read: Callable[[bytes], object]
    raises: tuple[type[BaseException], ...] = ()
    seeds: tuple[bytes, ...] = ()


def _in_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    def read_file(data: bytes) -> object:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            return read(path)

    return read_file


def _segment(data: bytes) -> object:
    segment = Segment(1, data)
    return [list(segment.records()), segment.subjects]


def _request(dialect: Dialect, read: Read | None = None) -> Callable[[bytes], object]:
    """Build the second request of a session."""

    def read_second(data: bytes) -> object:
        requests = Requests()
        with contextlib.suppress(BadField):
            requests.read(dialect, "/", CHAT, read)
        return requests.read(dialect, "/", data, read)

    return read_second


def _text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: read(data.decode("latin-1"))


_MANIFEST = SegmentManifest(
    segment=1, first=1, last=2, count=2, bytes=9, raw_bytes=9, sha256="0" * 64, name="segments/x", parent=""
)
_HEADER = b'{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
_RECORDS = [SegmentRecord(number, "slime.r.x.y.z", data) for number, data in enumerate(RECORDS[:3], 1)]
DECODERS: dict[str, Decoder] = {
    "envelope": Decoder(decode, (SchemaError,), RECORDS),
    "record": Decoder(lambda data: judge("r", "slime.r.x.y.z", None, data), (SchemaError,), RECORDS[:5]),
    "inbox question": Decoder(
        lambda data: read_json(data, InboxQuestion), (msgspec.DecodeError,), (b'{"keys": ["a", "b"]}',)
    ),
    "seal": Decoder(
        lambda data: read_json(data, SealWish), (msgspec.DecodeError,), (b'{"reward": 1.0, "rewards": {"3": 0.5}}',)
    ),
    "opening": Decoder(lambda data: read_json(data, SessionWish), (msgspec.DecodeError,), (b'{"wait_s": 30}',)),
    "count tokens": Decoder(_request(MESSAGES, MESSAGES.read_count), (BadField,), (CHAT,)),
    "segment": Decoder(_segment, (StorageError,), (pack_raw(_RECORDS),)),
    "frame": Decoder(decompress, (StorageError,), (compress(pack_raw(_RECORDS)),)),
    "manifest": Decoder(
        _in_file(
            manifest_name(1),
            lambda path: ManifestChain(ObjectFolder(str(path.parents[1]))).load().manifests,
        ),
        (StorageError, SchemaError),
        (to_json(_MANIFEST),),
    ),
    "shard": Decoder(
        _in_file("w.safetensors", lambda path: list(open_shard(path))),
        (StorageError,),
        (struct.pack("<Q", len(_HEADER)) + _HEADER + bytes(4),),
    ),
    "credentials": Decoder(
        _in_file("c.json", read_credentials), (ConfigError,), (b'{"user": "u", "password": "p", "url": "nats://h:1"}',)
    ),
    "sources": Decoder(
        _in_file(f"{FOLDER}/{FILE}", lambda path: Sources(path.parents[1]).admitted("token")),
        (ConfigError,),
        (b'{"quiz": "' + b"0" * 64 + b'"}',),
    ),
    "traceparent": Decoder(_text(parse_traceparent), (), (b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01",)),
    "host": Decoder(_text(host_of), (), (b"[::1]:8500", b"a.example:80")),
    "session key": Decoder(_text(SessionKeys(b"s").session_of), (), (b"a-s0.0.key",)),
}
for _kind, _item in ITEMS.items():
    DECODERS[f"message of {_kind}"] = Decoder(
        lambda data, item=_item: read_message(data, item), (), (b'[{"key": "k", "prompt": "a"}]', b'{"sample": "s"}')
    )
    DECODERS[f"line of {_kind}"] = Decoder(
        lambda data, kind=_kind: read_line(data, "1", kind=kind), (), (b'{"key": "k", "prompt": "a"}', b'{"reward": 1}')
    )
for _name, _dialect in DIALECTS.items():
    DECODERS[f"{_name} request"] = Decoder(_request(_dialect), (BadField,), (CHAT, b'{"input_ids": [1], "text": "a"}'))
assert InboxPrompt in ITEMS.values()
