"""Where messages go that memory has no room for.

- `none`: backends without a disk: one refuses, one drops (ephemeral topics and channels)

The disk queue is not built yet; it will implement `trionsq.core.backend.Backend` as well.
"""
