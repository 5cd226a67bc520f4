"""The directory of producers, nsqlookupd. Not built yet.

This package will hold the registration database, the TCP V1 protocol that nsqd speaks to it,
its HTTP API, and the ``nsqlookupd`` command. It will share ``trionsq.wire`` and
``trionsq.client`` with the rest and use nothing from inside the broker.
"""
