"""The bookie that is attacked: what is asked of the attack, its configuration, the way inside."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import trio

from metadata.ledgers import Ledgers
from metadata.model import Fragment, LedgerMetadata
from metadata.paths import LayoutType
from metadata.store import MetadataStore
from metadata.uri import parse_metadata_uri
from runtime.local_zookeeper import free_port
from runtime.tls_config import (
    SASL_BOOKIE_FACTORY,
    SASL_HOST,
    SASL_PLUGIN,
    SASL_SERVICE,
    TLS_FACTORY,
)
from tests.bookie_server.live_site import Site
from tests.fuzz.target import mutations
from tests.security.certificates import Authority
from tests.support.zookeeper import opened_store, shared_zookeeper
from wire import codec_v2, codec_v3
from wire.digest_md5 import DigestMd5Client
from wire.framing import FrameBuffer
from wire.messages import AuthRequest, AuthResponse
from wire.types import BookieId, DigestType, LedgerId

#: The neighbour's ledger: no captured frame names it, and it has a key of its own.
LEDGER_ID = LedgerId(0x5EED_0000_0001)
#: Full after the first tenth. With the default ones memory grows for six million frames, and a leak
#: would hide behind that.
SMALL_CACHES = {
    "dbStorage_writeCacheMaxSizeMb": 16,
    "dbStorage_readAheadCacheMaxSizeMb": 8,
    "dbStorage_rocksDB_blockCacheSize": 1 << 20,
    "quire_ledgersInMemory": 2000,
}
#: Rounds of the collector are part of the attack; a second one confirms each.
COLLECT_MS = 60_000
USER, PASSWORD = "bookkeeper-neighbour", "known to the neighbour"


@dataclass(frozen=True, kw_only=True)
class Plan:
    frames: int
    seed: int = 0
    http: bool = False  # the admin paths, too
    guarded: bool = False  # whoever comes must know a password; half of the attackers do


@dataclass(frozen=True)
class Entrance:
    """SASL, in either version: a connection keeps the one that it began with."""

    user: str
    password: str

    async def log_in(self, stream: trio.SocketStream, version: int = 2) -> None:
        known, frames, token = self._client(), FrameBuffer(), b""
        while not known.is_complete:
            await stream.send_all(_request(token, version))
            while (payload := frames.next_frame()) is None:
                data = await stream.receive_some(1 << 16)
                assert data, "somebody with a password was not let in"
                frames.feed(data)
            token = known.answer(_answer(payload, version))

    def wrong_tokens(self, rng: random.Random, version: int) -> bytes:
        """The exchange up to a proof, changed here and there. The challenge is not looked at."""
        challenge = b'realm="bookkeeper",nonce="guessed",qop="auth",algorithm=md5-sess'
        token = self._client().answer(challenge)
        (changed,) = mutations([token], 1, rng.randbytes(8))
        return _request(b"", version) + _request(rng.choice((token, changed)), version)

    def _client(self) -> DigestMd5Client:
        return DigestMd5Client(
            self.user, self.password, service=SASL_SERVICE, host=SASL_HOST, cnonce="chance"
        )


def _request(token: bytes, version: int) -> bytes:
    request = AuthRequest(plugin=SASL_PLUGIN, payload=token)
    if version == 2:
        return codec_v2.encode_request(request)
    return codec_v3.encode_request(request, transaction_id=1)


def _answer(payload: bytes, version: int) -> bytes:
    """The token in it."""
    if version == 2:
        answer = codec_v2.decode_response(payload)
    else:
        _, answer = codec_v3.decode_response(payload)
    assert isinstance(answer, AuthResponse)
    return answer.payload


async def prepared(folder: Path, plan: Plan) -> tuple[Site, Entrance | None, int]:
    """A cluster with one bookie, not started yet; its port for HTTP."""
    http_port = free_port()
    changes = {"gcWaitTime": COLLECT_MS} | SMALL_CACHES | _tls(folder)
    if plan.http:
        changes |= _http(folder, http_port)
    if plan.guarded:
        changes |= _sasl(folder)
    site = Site(folder, shared_zookeeper().address, changes=changes)
    async with opened_store() as store:
        await site.initialise(store)
        await _record_ledger(store, site)
    return site, Entrance(USER, PASSWORD) if plan.guarded else None, http_port


async def _record_ledger(store: MetadataStore, site: Site) -> None:
    """Without a record the neighbour's ledger would be garbage."""
    root = parse_metadata_uri(site.uri).root
    ledgers = Ledgers(store, root, LayoutType.HIERARCHICAL, chance=random.Random(1))
    template = LedgerMetadata(
        ledger_id=LEDGER_ID,
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        fragments=(Fragment(0, (BookieId(f"127.0.0.1:{site.port}"),)),),
        digest_type=DigestType.CRC32C,
        password=b"",
    )
    await ledgers.create(template, ledger_id=LEDGER_ID)


def _tls(folder: Path) -> dict[str, object]:
    """TLS is offered, so that START_TLS leads somewhere."""
    authority = Authority(folder / "authority")
    own = authority.issue("bookie")
    return {
        "tlsProviderFactoryClass": TLS_FACTORY,
        "tlsKeyStore": own.key,
        "tlsCertificatePath": own.certificate,
        "tlsTrustStore": authority.trust,
    }


def _http(folder: Path, port: int) -> dict[str, object]:
    """What changes something needs a token, and no attacker has it."""
    token = folder / "token"
    token.write_text(random.SystemRandom().randbytes(16).hex())
    token.chmod(0o600)
    return {
        "httpServerEnabled": "true",
        "httpServerPort": port,
        "quire_httpTokenFile": token,
        "statsProviderClass": "org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider",
    }


def _sasl(folder: Path) -> dict[str, object]:
    jaas = folder / "jaas.conf"
    module = "org.apache.zookeeper.server.auth.DigestLoginModule required"
    login = f'{module} username="{USER}" password="{PASSWORD}";'
    jaas.write_text(
        f'Bookie {{ {module} user_{USER}="{PASSWORD}"; }};\nBookKeeper {{ {login} }};\n'
    )
    jaas.chmod(0o600)
    return {"bookieAuthProviderFactoryClass": SASL_BOOKIE_FACTORY, "quire_jaasFile": jaas}
