"""A misbehaving nsqd harms neither the log, nor the memory, nor other nsqds."""

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipelines.wal import Wal, read_segment
from tests.pipelines.receiver.drive import LIMIT_S, publish, reach, running, until
from trionsq.testing import OpenBroker


def frame(kind: int, data: bytes) -> bytes:
    return struct.pack(">ii", len(data) + 4, kind) + data


def message(timestamp_ns: int, attempts: int, id_: bytes, body: bytes) -> bytes:
    return frame(2, struct.pack(">qH16s", timestamp_ns, attempts, id_) + body)


class Liar:
    """Answers IDENTIFY and SUB, then repeats ``lies`` without end, whatever RDY is."""

    def __init__(self, lies: bytes) -> None:
        self._lies = lies
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._stop = threading.Event()
        self.rounds = 0
        self.has_lied = threading.Event()
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def _serve(self, peer: socket.socket) -> None:
        with peer, suppress(OSError):
            peer.settimeout(60)
            heard = b""
            while b"IDENTIFY" not in heard:
                heard += peer.recv(65536)
            peer.sendall(frame(0, json.dumps({"max_rdy_count": 2500}).encode()))
            while b"SUB" not in heard:
                heard += peer.recv(65536)
            peer.sendall(frame(0, b"OK"))
            peer.settimeout(0.001)
            while not self._stop.is_set():
                with suppress(TimeoutError):
                    if not peer.recv(1 << 20):
                        return
                peer.settimeout(60)
                peer.sendall(self._lies)
                self.rounds += 1
                self.has_lied.set()
                peer.settimeout(0.001)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(
                    target=self._serve, args=(self._listener.accept()[0],), daemon=True
                ).start()

    @contextmanager
    def lying(self) -> Iterator["Liar"]:
        thread = threading.Thread(target=self._accept, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            thread.join()


def test_the_same_messages_for_ever_are_stored_once(nsqd: OpenBroker, tmp_path: Path) -> None:
    """Impossible times, attempts and ids, far more than RDY: once in the log, readable; and the
    honest nsqd beside it is served."""
    lies = b"".join(
        [
            message(-(2**63), 0, b"\xff\xfe" * 8, b""),
            message(2**63 - 1, 65535, b"FIN x\nREQ y z\n\0\0", b"\0" * 1000),
            *(message(index, 1, b"%016x" % index, b"%d" % index) for index in range(300)),
        ]
    )
    publish(nsqd.http_address, range(200))
    with (
        Liar(lies).lying() as liar,
        Wal.open(tmp_path) as wal,
        running(
            wal,
            nsqd.tcp_address,
            liar.address,
            max_in_flight=20,
            connections_per_nsqd=1,
            stop_timeout_s=2,
        ) as receiver,
    ):
        until(lambda: receiver.end == 502, receiver)
        until(lambda: liar.rounds > 20, receiver)
        assert receiver.end == 502
        # twice max_in_flight, and what one read brings
        assert receiver.statistics()["pending"] <= 40 + 128 * 1024 // 34
        rows = [
            row
            for ref in wal.segments(0, wal.end)
            for batch in read_segment(ref, 0, wal.end)
            for row in zip(
                batch.column("nsqd").to_pylist(),
                batch.column("id").to_pylist(),
                batch.column("attempts").to_pylist(),
                strict=True,
            )
        ]
    of_liar = {row[1:] for row in rows if row[0] == liar.address}
    assert len(of_liar) == 302
    assert ("\\xff\\xfe" * 8, 0) in of_liar
    assert ("FIN x\nREQ y z\n\0\0", 65535) in of_liar


def test_one_that_breaks_the_protocol_is_left_alone(nsqd: OpenBroker, tmp_path: Path) -> None:
    """A frame of 2 GiB or of a negative size ends that connection, not the receiver."""
    for lies in (struct.pack(">ii", 2**31 - 1, 2), struct.pack(">ii", -1, 2), b"\0" * 4096):
        with (
            Liar(lies).lying() as liar,
            Wal.open(tmp_path) as wal,
            running(wal, nsqd.tcp_address, liar.address, connections_per_nsqd=1) as receiver,
        ):
            liar.has_lied.wait(LIMIT_S)
            publish(nsqd.http_address, range(100))
            reach(receiver, wal.end + 100)
            receiver.check()
