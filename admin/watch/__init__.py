"""What goes on in the cluster, seen by one poller for all who look.

Reading order: snapshot (what a poll found), counters (rates), gathering (a poll's answers become
rows), ages (how long messages wait), history (the last hour), health (is anything wrong?), poller
(when to ask whom), events (browsers are told).
"""
