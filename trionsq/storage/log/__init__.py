"""The log engine: the messages of a topic in segment files, positions and settings in SQLite.

- `format`: segments and records as bytes; pure. docs/log-format.md has the bytes one by one
- `batches`: batches as the content of records; several batches as one
- `segments`: names of segment files, scans of their records, reads of messages
"""
