"""Who may use the dashboard, and for what; and who did what.

In reading order:

- `roles`: viewer < operator < admin
- `paths`: whom each path needs, in one table
- `modes`: where users come from (--access), and what that means
- `proxies`: whose headers are believed
- `users`, `passwords`, `attempts`: the users file, and how passwords are checked
- `session`: who is signed in; `cookie`: what tells
- `csrf`, `headers`: what browsers must not be talked into
- `audit`: who did what
- `guard`: `Access`, which asks all of these at each request; `opening`: made of the options
- `signin`: its own two paths
- `adduser`: ``nsqadmin --add-user``

Spec: nsqadmin, section 4 (``--admin-user``). The rest is ours.
"""
