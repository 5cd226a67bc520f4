"""Looking into a running trio program: its tasks, its event loop, its memory, where its time goes.

Nothing here knows of messages or HTTP, and nothing runs while nobody asks.

- `places`: where code is, in few words
- `tasks`: the living tree of nurseries and tasks (`tasks_shown`: as text and JSON)
- `loop`: what the event loop does for a while: runs, lag, who holds it up (`steps`: its longest
  steps, and which function ran in them)
- `process`: figures of the process: memory, descriptors, collector (`threads`: what they do)
- `heap`: what is in memory, and who allocated it
- `profile`: a sampling profiler (`profile_forms`, `pprof`: its profile in forms that tools open)
- `exclusive`: one measurement of a kind at a time
"""
