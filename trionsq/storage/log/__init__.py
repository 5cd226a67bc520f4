"""The log engine: the messages of a topic in segment files, positions and settings in SQLite.

- `rows`: what the state has, and how it changes
- `tables`: the state as tables, all SQL
- `state`: the state in a SQLite file
- `reserve`: a file that is given up when the disk is full
- `damage`, `figures`: what operators see
- `moved`: the logs of topics that had disk queues, and what is left of these
- `metadata_mark`: whether nsqd.dat is the one that this nsqd wrote
- `backup`: backups of a running nsqd, and their restore
"""
