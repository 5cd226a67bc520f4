"""The byte stream under a connection of nsqd or of a client, and what IDENTIFY lays over it.

- `transport`: the interface; sockets; a transport over another one; a transport as a trio stream
- `compression`: snappy and deflate
- `tls`: the handshake, TLS as a layer, names of cipher suites
- `certificates`: the server's certificate and the client certificates that it asks for
- `any_certificate`: the one policy that needs pyOpenSSL, imported only for it
"""
