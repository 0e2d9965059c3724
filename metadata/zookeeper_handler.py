"""What kazoo needs of the world: connections, and a way to log in that it does not have itself.

kazoo's TLS would trust more than our contexts do, and reads the files at every attempt; its SASL
needs a library that is not kept up. Both are done here instead.
"""

from __future__ import annotations

import secrets
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any, Final

import kazoo.exceptions
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import SASL

from metadata.access import ZookeeperAccess
from metadata.zookeeper_ending import shut_down
from metadata.zookeeper_socket import ReadAheadSocket, wait_ready
from runtime.doorbell import Doorbell
from runtime.tls import Certificates
from runtime.tls_stream import explain
from wire.digest_md5 import DigestMd5Client, SaslError

#: Fixed by ZooKeeper, for every server.
_SASL_SERVICE: Final = "zookeeper"
_SASL_HOST: Final = "zk-sasl-md5"
_CNONCE_BYTES: Final = 24


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's way to the world: no threads for callbacks, no connection after the end."""

    running = False  # makes kazoo run callbacks at once, in its own thread

    def __init__(self, session_seconds: float, certificates: Certificates | None) -> None:
        super().__init__()
        self._certificates = certificates
        self.socket: socket.socket | None = None
        self.is_greeting = False  # connected, and the server has not yet answered to that
        self.trouble = "no name of it can be resolved"
        # kazoo would wait for one greeting as long as the session lasts. A server that is just
        # starting may never send it, and the session would be over before the next attempt.
        self._greeting_seconds = max(1.0, session_seconds / 3)
        self._refuses = False
        self._lock = threading.Lock()

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def spawn(self, function: Callable[..., None], *args: Any, **kwargs: Any) -> threading.Thread:
        thread = threading.Thread(
            target=function, args=args, kwargs=kwargs, name="zookeeper", daemon=True
        )
        thread.start()
        return thread

    def create_socket_pair(self) -> tuple[Doorbell, Doorbell]:
        bell = Doorbell()
        return bell, bell

    def create_connection(self, address: tuple[str, int], **options: Any) -> socket.socket:
        where = f"{address[0]}:{address[1]}"
        options["timeout"] = min(options["timeout"], self._greeting_seconds)
        try:
            made: socket.socket = super().create_connection(address, **options)
            if self._certificates is None:
                made = ReadAheadSocket.around(made)
            else:
                made = self._encrypt(made, self._certificates, options.get("hostname"))
        except ssl.SSLError as error:
            self.trouble = str(explain(error, where, options.get("hostname")))
            raise
        except OSError as error:
            self.trouble = f"{where}: {error.strerror or error}"
            raise
        self.trouble = f"{where} takes connections, but does not answer as a ready ZooKeeper does"
        with self._lock:
            if not self._refuses:
                self.socket, self.is_greeting = made, True
                return made
        made.close()
        raise kazoo.exceptions.ConnectionDropped("the session is over")

    def _encrypt(
        self, made: socket.socket, certificates: Certificates, host: str | None
    ) -> ssl.SSLSocket:
        """The handshake is bounded by the time-out that the socket has."""
        try:
            return certificates.current().wrap_socket(made, server_hostname=host)
        except BaseException:
            made.close()
            raise

    def select(self, read: Any, write: Any, other: Any, timeout: float) -> Any:
        if self.is_greeting:
            timeout = min(timeout, self._greeting_seconds)
        return wait_ready(read, write, timeout)

    def refuse(self) -> None:
        """No further connection for this client; the present one is cut."""
        with self._lock:
            self._refuses = True
            shut_down(self.socket)

    def drop(self, connection: socket.socket | None) -> None:
        """Cut this connection, if it is still the present one: kazoo makes another."""
        with self._lock:
            if connection is self.socket:
                shut_down(connection)


def log_in_by_sasl(client: KazooClient, access: ZookeeperAccess) -> None:
    """Have every connection of this client prove who we are, before anything else is sent."""
    connection = client._connection

    def log_in(host: str, timeout: float) -> None:
        assert access.user is not None
        assert access.password is not None
        exchange = DigestMd5Client(
            access.user,
            access.password.reveal(),
            service=_SASL_SERVICE,
            host=_SASL_HOST,
            cnonce=secrets.token_urlsafe(_CNONCE_BYTES),
        )
        token, number = b"", 0
        while not exchange.is_complete:
            number += 1
            connection._submit(SASL(token), timeout, number)
            try:
                header, data, offset = connection._read_header(timeout)
            except kazoo.exceptions.ConnectionDropped as error:
                # That is how ZooKeeper says no.
                raise kazoo.exceptions.AuthFailedError("dropped while logging in") from error
            if header.err:
                raise kazoo.exceptions.AuthFailedError(f"error {header.err} while logging in")
            challenge, _ = SASL.deserialize(data, offset)
            try:
                token = exchange.answer(challenge or b"")
            except SaslError as error:
                raise kazoo.exceptions.AuthFailedError(str(error)) from error

    connection.sasl_options = {"mechanism": "DIGEST-MD5"}  # makes kazoo call the following
    connection._authenticate_with_sasl = log_in
