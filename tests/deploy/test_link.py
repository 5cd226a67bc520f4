"""Bad links are as bad as configured, by both means, and good again afterwards."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from itertools import count

import pytest
import trio

from tests.deploy import netns
from tests.deploy.link import Kind, bad_link, netem_why_not, wire
from tests.deploy.netns import HOST_NODE, Network, entered, network

WHY_NOT = netns.why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

NO_NETEM = WHY_NOT if WHY_NOT else netem_why_not()
KINDS = ["wire", pytest.param("netem", marks=pytest.mark.skipif(bool(NO_NETEM), reason=NO_NETEM))]
LIMIT_S = 60.0
PORT = 4000
DATAGRAMS = 2000
SO_RCVBUFFORCE = 33
BUFFER_NBYTES = 4 * 1024 * 1024


@pytest.fixture
def net() -> Iterator[Network]:
    """The host's node and ``far``, whose link is to be bad."""
    with network(["far"]) as made:
        yield made


def udp(net: Network, node: str) -> trio.socket.SocketType:
    """A socket on the node."""
    with entered(net.namespace(node)):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    # As a late reader must not lose any.
    sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_NBYTES)
    sock.bind((net.addresses[node], PORT))
    return trio.socket.from_stdlib_socket(sock)


async def tcp(net: Network) -> tuple[trio.SocketStream, trio.SocketStream]:
    """A connection, its ends on the host's node and on ``far``."""
    with entered(net.namespace("far")):
        sock = socket.socket()
    with closing(sock):
        sock.bind((net.addresses["far"], PORT))
        sock.listen()
        here = await net.connect(net.addresses["far"], PORT)
        there, _ = sock.accept()
    there.setblocking(False)
    return here, trio.SocketStream(trio.socket.from_stdlib_socket(there))


async def round_trip_s(net: Network) -> float:
    """Of one datagram and its answer; for ever if one is lost."""
    with udp(net, HOST_NODE) as here, udp(net, "far") as far:
        begin_s = trio.current_time()
        await here.sendto(b"ping", (net.addresses["far"], PORT))
        data, sender = await far.recvfrom(100)
        await far.sendto(data, sender)
        await here.recv(100)
        return trio.current_time() - begin_s


async def received(net: Network, number: int) -> list[int]:
    """Which of so many datagrams to ``far`` arrive, in their order."""
    found = list[int]()
    address = (net.addresses["far"], PORT)
    with udp(net, HOST_NODE) as here, udp(net, "far") as far:
        async with trio.open_nursery() as nursery:

            async def receive() -> None:
                while not found or found[-1] < number:
                    found.append(int(await far.recv(100)))
                nursery.cancel_scope.cancel()

            nursery.start_soon(receive)
            # Nothing overtakes: when one after the last has come, the others are lost.
            for one in count():
                await here.sendto(b"%d" % one, address)
                if one >= number:
                    await trio.sleep(0.02)
    return [one for one in found if one < number]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_round_trip_takes_the_delay_twice(net: Network, kind: Kind) -> None:
    """A frame waits for the delay in each direction."""
    with trio.fail_after(LIMIT_S):
        async with bad_link(net, "far", delay_ms=100, loss=0, kind=kind) as link:
            assert link.kind == kind
            assert await round_trip_s(net) >= 0.2
            assert await round_trip_s(net) >= 0.2  # now without ARP


@pytest.mark.parametrize("kind", KINDS)
async def test_about_the_share_asked_for_is_lost_and_counted(net: Network, kind: Kind) -> None:
    """About the configured share of datagrams is lost; afterwards all arrive in order."""
    with trio.fail_after(LIMIT_S):
        # What waits for ARP's answer is overtaken by what comes after it.
        await round_trip_s(net)
        async with bad_link(net, "far", delay_ms=1, loss=0.2, seed=3, kind=kind) as link:
            found = await received(net, DATAGRAMS)
            counts = await link.counts()
        assert 0.1 < 1 - len(found) / DATAGRAMS < 0.3
        assert found == sorted(found)
        assert counts["lost"] >= DATAGRAMS - len(found)
        assert counts["passed"] >= len(found)
        assert await received(net, DATAGRAMS) == list(range(DATAGRAMS))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_connection_lives_through_it_and_its_data_arrive_whole(
    net: Network, kind: Kind
) -> None:
    """TCP repairs the losses of a bad link on the same connection."""
    data = b"".join(struct.pack("!I", one) for one in range(500_000))
    here, there = await tcp(net)
    with trio.fail_after(LIMIT_S):
        async with here, there:
            assert await carry(here, there, data) == sha256(data).digest()
            async with bad_link(net, "far", delay_ms=2, loss=0.02, kind=kind) as link:
                assert await carry(here, there, data) == sha256(data).digest()
                assert await carry(there, here, data) == sha256(data).digest()
                assert (await link.counts())["lost"] > 0
            assert await carry(here, there, data) == sha256(data).digest()


async def carry(source: trio.SocketStream, target: trio.SocketStream, data: bytes) -> bytes:
    """What arrived of it, as a digest."""
    digest, nbytes = sha256(), 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(source.send_all, data)
        while nbytes < len(data):
            part = await target.receive_some(1 << 16)
            assert part, "closed"
            digest.update(part)
            nbytes += len(part)
    return digest.digest()


async def test_what_a_stalled_wire_holds_comes_when_it_goes_on(net: Network) -> None:
    """No frame passes during a stall, and none is lost."""
    with trio.fail_after(LIMIT_S), udp(net, HOST_NODE) as here, udp(net, "far") as far:
        async with wire(net, "far") as link:
            await link.make_bad(0, 0)
            await here.sendto(b"before", (net.addresses["far"], PORT))
            assert await far.recv(100) == b"before"
            await link.stall()
            before = (await link.counts())["taken"]
            await here.sendto(b"meanwhile", (net.addresses["far"], PORT))
            while (await link.counts())["taken"] == before:
                pass  # asking takes its time
            assert not far.is_readable()
            await link.go_on()
            assert await far.recv(100) == b"meanwhile"


async def test_a_reset_ends_a_connection_at_both_ends(net: Network) -> None:
    """A reset also ends a stalled connection; a new one can be made afterwards."""
    here, there = await tcp(net)
    with trio.fail_after(LIMIT_S):
        async with here, there, wire(net, "far") as link:
            await link.make_bad(10, 0)
            await here.send_all(b"before")
            assert await there.receive_some(100) == b"before"
            await link.stall()
            await here.send_all(b"never")
            await link.reset()
            for end in (here, there):
                with pytest.raises(trio.BrokenResourceError) as caught:
                    await end.receive_some(100)
                assert isinstance(caught.value.__cause__, ConnectionResetError)
            assert (await link.counts())["reset"] > 0
            await link.go_on()
            here, there = await tcp(net)
            async with here, there:
                await here.send_all(b"again")
                assert await there.receive_some(100) == b"again"


async def test_a_link_that_was_cut_stays_cut_and_can_be_joined_again(net: Network) -> None:
    """A wire outlives its port going down and up, as `Network.set_link` does."""
    with trio.fail_after(LIMIT_S):
        async with wire(net, "far") as link:
            await link.make_bad(0, 0)
            await round_trip_s(net)
            net.set_link("far", up=False)
            with trio.move_on_after(0.2) as patience:
                await round_trip_s(net)
            assert patience.cancelled_caught
            net.set_link("far", up=True)
            assert await received(net, 0) == []
