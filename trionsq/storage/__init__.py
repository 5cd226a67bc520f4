"""Where messages go that memory has no room for, and what survives a restart.

- `disk`: the little that is needed of an operating system; `background`: where blocking work goes
- `folder`: what all queues of a data path share; `lock`: one nsqd at a time
- `diskqueue`: a queue in files, made of `writer` (its tail), `reader` (its head), `records` (the
  format), `positions` (where both stand), `deferrals` and `duetimes` (when messages are due),
  `sync` (durability), `peek` (a look without taking), `leftover` (the files of a deleted queue)
- `metadata`: which topics and channels there are; `idfloor`: ids never go backwards
- `none`: the backend of ephemeral topics and channels, which drops
"""
