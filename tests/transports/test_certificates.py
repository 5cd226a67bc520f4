"""The server's certificate, the clients' ones, and what changes on disk."""

from __future__ import annotations

import logging
import os
import ssl
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from OpenSSL import crypto

from tests.transports.ends import (
    authority,
    client_context,
    client_engine,
    issue,
    memory_pair,
    receive,
    shaken,
    stranger,
    write_ca,
    write_pair,
)
from trionsq.transports.certificates import ServerTls, TlsConfigError, TlsFiles
from trionsq.transports.tls import Engine, SslEngine, TlsLayer, reason_of, suite_name, version_name
from trionsq.transports.transport import LayeredTransport

POLICIES = ("", "require", "require-verify")


def server(folder: Path, policy: str = "", **more: str) -> ServerTls:
    cert, key = write_pair(folder)
    ca = write_ca(folder)
    return ServerTls(TlsFiles(cert, key, ca, policy, **more))


def meets(engine: Engine, certificate: trustme.LeafCert | None) -> str:
    """The common name that the server sees of a client with that certificate.

    Raises:
        ssl.SSLError: it is refused.
    """
    there, _ = shaken(engine, client_engine(client_context(certificate)))
    return there.info().common_name


@pytest.mark.parametrize("policy", POLICIES)
def test_whom_a_policy_lets_in(tmp_path: Path, policy: str) -> None:
    """None asks for nothing; require for any certificate; require-verify for one of the CA's."""
    tls = server(tmp_path, policy)
    ours, foreign = issue(authority(), "worker"), issue(stranger(), "thief")
    seen = {}
    for who, certificate in (("nobody", None), ("ours", ours), ("foreign", foreign)):
        try:
            seen[who] = meets(tls.new_engine(0.0), certificate)
        except ssl.SSLError:
            seen[who] = "refused"
    assert (
        seen
        == {
            "": {"nobody": "", "ours": "", "foreign": ""},
            "require": {"nobody": "refused", "ours": "worker", "foreign": "thief"},
            "require-verify": {"nobody": "refused", "ours": "worker", "foreign": "refused"},
        }[policy]
    )


@pytest.mark.parametrize("policy", ["", "require"])
def test_either_engine_carries_a_stream(tmp_path: Path, policy: str) -> None:
    """Long messages both ways, the end of the stream, and what was agreed on."""
    engine, peer = shaken(
        server(tmp_path, policy).new_engine(0.0),
        client_engine(client_context(issue(authority(), "worker"))),
    )
    info = engine.info()
    assert (info.version, info.cipher) == (peer.info().version, peer.info().cipher)
    assert info.version == "TLSv1.3"
    one, other = memory_pair(2**21)
    inside, outside = (
        LayeredTransport(one, TlsLayer(engine)),
        LayeredTransport(other, TlsLayer(peer)),
    )
    data = bytes(range(256)) * 1000
    assert inside.send_nowait(data) == len(data)
    assert outside.send_nowait(data[::-1]) == len(data)
    assert receive(outside) == (data, False)
    assert receive(inside) == (data[::-1], False)
    outside.end_sending()
    assert receive(inside) == (b"", True)
    inside.end_sending()
    assert receive(outside) == (b"", True)


@pytest.mark.parametrize("policy", ["", "require"])
def test_the_lowest_version_is_kept_to(tmp_path: Path, policy: str) -> None:
    """A client that can do no better than TLS 1.2 is refused where 1.3 is the least."""
    context = client_context(issue(authority()))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    there, _ = shaken(server(tmp_path, policy).new_engine(0.0), client_engine(context))
    assert there.info().version == "TLSv1.2"
    tls = server(tmp_path, policy, min_version="tls1.3")
    with pytest.raises(ssl.SSLError):
        shaken(tls.new_engine(0.0), client_engine(context))


@pytest.mark.parametrize("version", ["tls1.0", "tls1.1", "tls1.2", "tls1.3"])
def test_every_lowest_version_can_be_asked_for(tmp_path: Path, version: str) -> None:
    """Also those that no client of today can be met with."""
    there, _ = shaken(server(tmp_path, min_version=version).new_engine(0.0), client_engine())
    assert there.info().version == "TLSv1.3"


def test_with_require_verify_and_no_ca_the_system_decides(tmp_path: Path) -> None:
    """A certificate of somebody unknown to the system is refused."""
    cert, key = write_pair(tmp_path)
    tls = ServerTls(TlsFiles(cert, key, "", "require-verify"))
    with pytest.raises(ssl.SSLError):
        meets(tls.new_engine(0.0), issue(authority(), "worker"))


def spoil(folder: Path, how: str) -> TlsFiles:
    """Files that can't be used."""
    cert, key = write_pair(folder)
    ca = write_ca(folder)
    match how:
        case "no file":
            os.unlink(cert)
        case "not readable":
            key = str(folder)
        case "no certificate":
            Path(cert).write_text("nothing")
        case "another's key":
            Path(key).write_bytes(issue(authority()).private_key_pem.bytes())
        case "encrypted key":
            secret = load_pem_private_key(Path(key).read_bytes(), None)
            form = (Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x"))
            Path(key).write_bytes(secret.private_bytes(*form))
        case "no authority":
            Path(ca).write_text("nothing")
        case "no key":
            key = ""
    return TlsFiles(cert, key, ca)


FAULTS = {
    "no file": "open {}/cert.pem: no such file or directory",
    "not readable": "open {}: is a directory",
    "no certificate": "{}/cert.pem, {}/key.pem: ",
    "another's key": "{}/cert.pem, {}/key.pem: key values mismatch",
    "encrypted key": "{}/cert.pem, {}/key.pem: the key is encrypted, which is not supported",
    "no authority": "{}/ca.pem: ",
    "no key": "no --tls-key",
}


@pytest.mark.parametrize("how", FAULTS)
def test_files_that_cannot_be_used_are_named(tmp_path: Path, how: str) -> None:
    """With the reason; nothing is asked on the terminal."""
    with pytest.raises(TlsConfigError) as raised:
        ServerTls(spoil(tmp_path, how))
    text = str(raised.value)
    assert text.startswith(FAULTS[how].replace("{}", str(tmp_path)))
    assert not text.endswith(": ")


def name_seen(tls: ServerTls, now_s: float) -> str:
    """The common name of the certificate that a new connection is shown."""
    _, peer = shaken(tls.new_engine(now_s), client_engine(no_check()))
    assert isinstance(peer, SslEngine)
    return peer.info().common_name


def no_check() -> ssl.SSLContext:
    """Trusts the authority, and takes its certificates for any name."""
    context = client_context()
    context.check_hostname = False
    return context


def test_a_changed_certificate_is_used_within_a_second(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By new connections; the files are not looked at more often."""
    caplog.set_level(logging.INFO, "trionsq")
    write_ca(tmp_path)
    cert, key = write_pair(tmp_path, name="old")
    tls = ServerTls(TlsFiles(cert, key))
    old = tls.new_engine(0.0)
    assert name_seen(tls, 100.0) == "old"
    write_pair(tmp_path, name="new")
    assert name_seen(tls, 100.9) == "old"
    assert name_seen(tls, 101.0) == "new"
    # A handshake that had begun goes on with what it had.
    _, peer = shaken(old, client_engine(no_check()))
    assert peer.info().common_name == "old"
    assert [text for text in caplog.messages if "reloaded" in text] == [
        f"TLS: reloaded certificate {cert}"
    ]


def test_a_changed_authority_decides_anew(tmp_path: Path) -> None:
    """Whoever had the trust of the old one is refused."""
    tls = server(tmp_path, "require-verify")
    worker = issue(authority(), "worker")
    assert meets(tls.new_engine(0.0), worker) == "worker"
    write_ca(tmp_path, stranger())
    with pytest.raises(ssl.SSLError):
        meets(tls.new_engine(1.0), worker)
    assert meets(tls.new_engine(2.0), issue(stranger(), "new")) == "new"


@pytest.mark.parametrize("how", [how for how in FAULTS if how != "no key"])
def test_broken_new_files_leave_the_old_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """One error in the log for each change, and what comes right later is used."""
    ca, cert_key = write_ca(tmp_path), write_pair(tmp_path, name="old")
    tls = ServerTls(TlsFiles(*cert_key, ca))
    if how == "not readable":
        os.unlink(cert_key[1])
        os.mkdir(cert_key[1])
    else:
        spoil(tmp_path, how)
    assert {name_seen(tls, now_s) for now_s in (1.0, 2.0, 3.0)} == {"old"}
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    if how == "not readable":
        os.rmdir(cert_key[1])
    write_ca(tmp_path)
    write_pair(tmp_path, name="new")
    assert name_seen(tls, 4.0) == "new"


@pytest.mark.parametrize(
    ("openssl", "nsqd"),
    [
        ("TLS_AES_128_GCM_SHA256", "Unknown 4865"),
        ("TLS_AES_256_GCM_SHA384", "Unknown 4866"),
        ("ECDHE-RSA-AES128-GCM-SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"),
        ("ECDHE-ECDSA-AES128-GCM-SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"),
        ("ECDHE-RSA-AES256-GCM-SHA384", "Unknown 49200"),
        ("ECDHE-RSA-CHACHA20-POLY1305", "Unknown 52392"),
        ("AES256-SHA", "TLS_RSA_WITH_AES_256_CBC_SHA"),
        ("nobody knows", "Unknown 0"),
    ],
)
def test_suites_have_the_names_of_nsqd(openssl: str, nsqd: str) -> None:
    """The classic ones by name, the others by number."""
    assert suite_name(openssl) == nsqd


def test_versions_have_the_names_of_nsqd() -> None:
    """TLS1.0 to TLS1.3."""
    names = ["TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"]
    assert [version_name(name) for name in names] == ["TLS1.0", "TLS1.1", "TLS1.2", "TLS1.3"]


def weak_pair(folder: Path, bits: int, digest: str) -> tuple[str, str]:
    """A certificate of the authority and its key as files."""
    pem, ca = crypto.FILETYPE_PEM, authority()
    key = crypto.PKey()
    key.generate_key(crypto.TYPE_RSA, bits)
    made = crypto.X509()
    made.set_version(2)
    made.set_serial_number(1)
    made.get_subject().CN = "weak"
    made.gmtime_adj_notBefore(-60)
    made.gmtime_adj_notAfter(3600)
    made.set_pubkey(key)
    made.set_issuer(crypto.load_certificate(pem, ca.cert_pem.bytes()).get_subject())
    made.sign(crypto.load_privatekey(pem, ca.private_key_pem.bytes()), digest)
    cert, key_path = folder / "weak.pem", folder / "weak.key"
    cert.write_bytes(crypto.dump_certificate(pem, made))
    key_path.write_bytes(crypto.dump_privatekey(pem, key))
    return str(cert), str(key_path)


WEAK = [
    (1024, "sha256", "refuses the certificate's key as too weak: RSA keys need 2048 bits or more"),
    (2048, "sha1", "refuses the certificate's signature as too weak: have it signed with SHA-256"),
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("bits", "digest", "reason"), WEAK)
def test_a_certificate_that_is_too_weak_is_named_as_such(
    tmp_path: Path, bits: int, digest: str, reason: str
) -> None:
    """With its file, the reason, and what would do: the original may have taken it for years."""
    cert, key = weak_pair(tmp_path, bits, digest)
    with pytest.raises(TlsConfigError, match=reason) as caught:
        ServerTls(TlsFiles(cert, key))
    assert cert in str(caught.value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("bits", "digest", "reason"), WEAK)
def test_a_client_with_a_weak_certificate_is_told(
    tmp_path: Path, bits: int, digest: str, reason: str
) -> None:
    """The handshake fails with the reason, not only with a certificate that is not valid."""
    cert, key = weak_pair(tmp_path, bits, digest)
    context = client_context()
    # As a client would have it whose library takes such certificates.
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.load_cert_chain(cert, key)
    server_cert, server_key = write_pair(tmp_path)
    files = TlsFiles(server_cert, server_key, write_ca(tmp_path), "require-verify")
    with pytest.raises(ssl.SSLError) as caught:
        shaken(ServerTls(files).new_engine(0.0), client_engine(context))
    assert reason in reason_of(caught.value)
