"""What IDENTIFY lays over a connection: TLS, snappy and deflate, for both of its ends."""
