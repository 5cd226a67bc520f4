"""Programs that join the packages, above everything.

- `nsqd`: the command ``nsqd``; `nsqd_daemon`: its life, from the lock to the last message saved
- `mount`: nsqadmin inside an nsqd (``--admin``)
- `main`: the command ``trionsq``; `up`: the local cluster that it starts; `operate`: what it does
  to clusters
- `demo`: ``make run``, such a cluster with data flowing through it
"""
