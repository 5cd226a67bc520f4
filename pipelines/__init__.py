"""Spark sources and sinks for NSQ topics. Not built yet.

This package will hold a streaming source that stores messages before it acknowledges them, a
batch sink, and the local log between the two. It needs the ``spark`` extra.
"""
