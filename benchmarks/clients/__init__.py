"""One small program for each client library: takes the messages of a channel, finishes each."""
