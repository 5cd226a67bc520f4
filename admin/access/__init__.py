"""Who may use the dashboard, and for what; and who did what.

In reading order:

- `roles`: viewer < operator < admin, and the role that each path requires, in one table
- `modes`: where users come from (--access), and which proxies are trusted
- `users`: the users file; `passwords`: how passwords are hashed, checked and limited
- `session`: sessions and their cookie
- `cross_site`: CSRF tokens, the origin of a request, security headers
- `audit`: who did what
- `guard`: `Access`, which uses all of these for each request; `open_access` makes it

The sign-in page and its forms are in `admin.pages.account`. Spec: nsqadmin, section 4
(``--admin-user``). The rest is ours.
"""
