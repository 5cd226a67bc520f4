"""Failure drills on the topology of deploy/compose.yaml: break one thing under load, miss nothing.

`account` keeps the history of each message and judges it, `load` publishes and consumes by the
client library as docs/client.md tells users to, `harness` runs one drill, `faults` is what is
broken, `python -m tests.deploy.drill` runs all of it again and again.
"""
