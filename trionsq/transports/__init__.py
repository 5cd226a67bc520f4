"""The byte stream under a connection of nsqd or of a client, and what IDENTIFY lays over it.

- `transport`: the interface; sockets; a transport over another one
- `trio_sockets`, `asyncio_sockets`: waiting for sockets; a transport as a trio stream
- `runtime`: what differs between trio and asyncio beside that
- `compression`: snappy and deflate
- `tls`: the handshake, TLS as a layer, names of cipher suites
- `certificates`: the server's certificate and the client certificates that it asks for
- `any_certificate`: the one policy that needs pyOpenSSL, imported only for it
"""
