"""What operators do, as commands: ``trionsq topic|channel|node|log``.

- `tree`: the root of all commands; `topics`, `channels`, `nodes`, `logs`: the commands of each
  kind. They are definitions only: help, completion and man pages are made from them, without the
  large packages
- `flags`: flags of commands, from tables of options
- `session`: the nodes of a cluster, all asked at once; `changes`, `reports`: what changes them, and
  what shows them
- `manual`: manual pages
- `output`: tables, JSON, and the question before something is destroyed
"""
