"""The tool nsq_to_file: what topics get, in files.

- `names`: file names from formats
- `topic_log`: the files of one topic, synchronous
- `options`: the flags, and what is refused
- `run`: consumers, time and signals
"""
