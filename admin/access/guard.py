"""The check of every request: who sent it, whether they may, whether they meant it; and the audit.

Where users come from is in `modes`; the role that a path requires is in `roles`.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any, Final
from urllib.parse import quote

import trio
from quart import Response, g, has_request_context, request
from quart_trio import QuartTrio

from admin.access.audit import Audit, Entry, request_entries, set_entries_status
from admin.access.cross_site import (
    SAFE_METHODS,
    Tokens,
    request_token,
    same_origin,
    security_headers,
)
from admin.access.modes import (
    LOOPBACK,
    Mode,
    Proxies,
    came_through_a_proxy,
    decide,
    explain,
    is_local_host,
    only_value,
)
from admin.access.passwords import Busy, Passwords, TooManyAttempts, hash_password
from admin.access.roles import Role, User, required_role
from admin.access.session import Session, Sessions, cookie_name
from admin.access.users import Account, FixedUsers, Users, UsersError, UsersFile
from admin.options import NsqadminOptions, OptionsError
from admin.user_action import UserAction
from trionsq.web import responses

__all__ = ["NOBODY", "SIGN_IN_PATH", "Access", "open_access"]

log = logging.getLogger("trionsq")

SIGN_IN_PATH: Final = "/sign-in"
NOBODY: Final = User("", Role.EVERYONE, "nobody")


class Access:
    """Access control of one application.

    Attributes:
        mode: where users come from.
        audit: who did what.
        port: that nsqadmin listens on; below 1: none.
        passwords, users, sessions: for sign-in.
    """

    def __init__(
        self,
        options: NsqadminOptions,
        mode: Mode,
        users: Users,
        now_s: Callable[[], float] = trio.current_time,
    ) -> None:
        """``now_s`` is the clock of sessions and waiting times, in seconds.

        Raises:
            OptionsError: --trusted-proxy-cidr is wrong.
            OSError: --audit-file can't be written to.
        """
        self._options = options
        self.mode = mode
        self.users = users
        self.passwords = Passwords(users, now_s)
        self.sessions = Sessions(options.session_lifetime_ns / 1e9, now_s)
        self.audit = Audit(options.audit_file)
        self.port = 0
        self._tokens = Tokens()
        networks = options.trusted_proxy_cidr
        self._proxies = Proxies(networks or (LOOPBACK if mode is Mode.PROXY else ()))
        self._base_path = "" if options.base_path == "/" else options.base_path

    # For pages and handlers

    @property
    def current(self) -> User:
        """The sender of the request that is being answered."""
        user = g.get("user", NOBODY) if has_request_context() else NOBODY
        assert isinstance(user, User)
        return user

    def allows(self, role: str) -> bool:
        """Whether the sender of the request has the role of that name."""
        return self.current.may(Role.named(role))

    def user(self) -> str:
        """The name of the sender, verified or not; "" if there is none."""
        if name := self.current.name:
            return name
        authorization = request.authorization
        if authorization is not None and authorization.type == "basic":
            return authorization.username or ""
        return ""

    def csrf_token(self) -> str:
        """The value of the field ``csrf_token`` for forms in this response."""
        return self._tokens.make_token(_whom())

    @property
    def has_sign_in(self) -> bool:
        """Whether users sign in and out."""
        return self.mode is Mode.PASSWORD

    def standing(self) -> Callable[[], bool]:
        """A function that tells whether the sender is still allowed, for responses that go on.

        Call `standing` within the request; the function may be called later.
        """
        session: Session | None = g.get("session")
        user = self.current
        if session is None:
            return lambda: True
        return lambda: self.sessions.is_alive(session) and self._known(session) == user

    def record_action(
        self, action: str, *, topic: str = "", channel: str = "", node: str = "", note: str = ""
    ) -> None:
        """Record what the request does in the audit, where there is no `UserAction`."""
        self._describe(action=action, topic=topic, channel=channel, node=node, note=note)

    def record_failure(self, why: str) -> None:
        """Record that the request changed nothing."""
        if entries := request_entries():
            note = entries[-1].note or why
            entries[-1] = dataclasses.replace(entries[-1], failed=True, note=note)

    def observe(self, action: UserAction) -> None:
        """Enter an action into the audit; an observer for `Dashboard.observers`."""
        self._describe(
            action=action.action,
            topic=action.topic,
            channel=action.channel,
            node=action.node,
            note="; ".join([*action.warnings, *([action.error] if action.error else [])]),
            failed=bool(action.error),
        )

    def address(self) -> str:
        """The address of the sender, by trusted proxies if there are any; "": a unix socket."""
        return self._proxies.origin_of(_peer(), request.headers)

    # Hooks

    def install(self, app: QuartTrio) -> None:
        """Check every request of ``app``. To be called before other hooks are added."""
        headers = security_headers(
            "" if self._options.proxy_graphite else self._options.graphite_url,
            private=self.has_sign_in,
        )

        async def before() -> Response | None:
            return await self._admit()

        async def after(response: Response) -> Response:
            set_entries_status(response.status_code)
            for name, value in headers.items():
                response.headers.setdefault(name, value)
            return response

        self.audit.install(app)
        app.before_request(before)
        app.after_request(after)

    async def _admit(self) -> Response | None:
        rule = request.url_rule.rule if request.url_rule is not None else ""
        role = required_role(request.method, self._below(rule), acl=self.mode is Mode.ACL)
        g.user, g.session = NOBODY, None
        try:
            g.user = await self._identify(role)
        except TooManyAttempts as error:
            return _retry(429, "TOO_MANY_ATTEMPTS", error.wait_s)
        except Busy:
            return _retry(503, "BUSY", 1.0)
        unsafe = request.method not in SAFE_METHODS
        if unsafe and not same_origin(request.headers, self._own_names()):
            return self._refuse("CROSS_SITE_REQUEST")
        if not self.current.may(role):
            return self._refuse("FORBIDDEN")
        if unsafe and role > Role.EVERYONE:
            if self._needs_token() and not self._tokens.check_token(await request_token(), _whom()):
                return self._refuse("INVALID_CSRF_TOKEN")
            request_entries().append(self.entry())
        return None

    async def _identify(self, minimum: Role) -> User:
        peer, headers = _peer(), request.headers
        if self.mode is Mode.NONE:
            return User("", Role.ADMIN, "none")
        if self.mode is Mode.LOCAL:
            local = not came_through_a_proxy(headers) and is_local_host(_given_host())
            return User("", Role.ADMIN if local else Role.VIEWER, "none")
        name = only_value(headers, self._options.acl_http_header)
        if self.mode is Mode.ACL:
            believed = not self._proxies or self._proxies.include(peer)
            admin = believed and name in self._options.admin_user
            return User(name if believed else "", Role.ADMIN if admin else Role.VIEWER, "header")
        if self.mode is Mode.PROXY:
            if not name or not self._proxies.include(peer):
                return NOBODY
            return User(name, self._role_by_proxy(name), "header")
        if (user := self._in_session()) is not None:
            return user
        return NOBODY if minimum is Role.EVERYONE else await self._by_basic()

    def _role_by_proxy(self, name: str) -> Role:
        if name in self._options.admin_user:
            return Role.ADMIN
        if self._options.proxy_role_header:
            try:
                return Role.named(only_value(request.headers, self._options.proxy_role_header))
            except ValueError:
                pass  # not one of our roles: the user may read
        return Role.VIEWER

    def _in_session(self) -> User | None:
        session = self.sessions.find_session(request.cookies.get(cookie_name(self.port), ""))
        if session is None:
            return None
        user = self._known(session)
        if user is None:
            self.sessions.end_session(session)
        else:
            g.session = session
        return user

    def _known(self, session: Session) -> User | None:
        account = self.users.find(session.name)
        if account is None or account.seal != session.seal:
            return None
        return User(account.name, account.role, "session")

    async def _by_basic(self) -> User:
        authorization = request.authorization
        if authorization is None or authorization.type != "basic":
            return NOBODY
        name, password = authorization.username or "", authorization.password or ""
        account = await self.passwords.check_remembered(name, password, self.address())
        if account is None:
            log.warning("ACCESS: wrong user or password from %s", self.address())
            return NOBODY
        return User(account.name, account.role, "basic")

    def _needs_token(self) -> bool:
        # Programs that use the API send Basic or headers, which other sites' pages can't.
        return g.session is not None or not self._is_api()

    def _is_api(self) -> bool:
        return self._below(request.path).startswith(("/api/", "/config/"))

    def _below(self, path: str) -> str:
        return path.removeprefix(self._base_path) or "/"

    def _own_names(self) -> tuple[str, ...]:
        names = [_given_host()]
        if self._proxies.include(_peer()):
            names.append(only_value(request.headers, "X-Forwarded-Host"))
        return tuple(name for name in names if name)

    def _refuse(self, code: str) -> Response:
        known = self.current is not NOBODY
        if known and request.method not in SAFE_METHODS:
            request_entries().append(self.entry(refused=True, note=code))
        log.debug("ACCESS: %s %s - %s", request.method, request.path, code)
        if known or code != "FORBIDDEN" or not self.has_sign_in:
            return responses.error(403, code)
        return self._to_sign_in()

    def _to_sign_in(self) -> Response:
        next_path = self._base_path + "/"
        sign_in = self._base_path + SIGN_IN_PATH
        if "HX-Request" in request.headers:
            answer = responses.error(401, "UNAUTHORIZED")
            answer.headers["HX-Redirect"] = sign_in
        elif "text/html" in request.headers.get("Accept", "") and not self._is_api():
            if request.method == "GET":
                # As received: decoded, "#ephemeral" would not be part of the path any more.
                path = bytes(request.scope.get("raw_path") or b"/") + b"?" + request.query_string
                next_path = path.decode("ascii", "replace").removesuffix("?")
            answer = Response(b"", 303)
            answer.headers["Location"] = f"{sign_in}?next={quote(next_path, safe='/')}"
        else:
            answer = responses.error(401, "UNAUTHORIZED")
        if answer.status_code == 401:
            # "Basic" in the answer to a script would open the browser's own password dialog.
            scheme = "Session" if "Sec-Fetch-Mode" in request.headers else "Basic"
            answer.headers["WWW-Authenticate"] = f'{scheme} realm="nsqadmin"'
        return answer

    # Audit

    def entry(self, **more: Any) -> Entry:
        """An audit entry for the request that is being answered."""
        user = self.current
        fields: dict[str, Any] = {
            "time_s": time.time(),
            "user": user.name,
            "role": user.role.title,
            "how": user.how,
            "address": self.address(),
            "user_agent": request.headers.get("User-Agent", ""),
            "method": request.method,
            "path": request.path,
            "status": None,
        }
        return Entry(**(fields | more))

    def record(self, **more: Any) -> None:
        """Add an audit entry for the request; it is written when the request has ended."""
        request_entries().append(self.entry(**more))

    def _describe(self, **fields: Any) -> None:
        entries = request_entries()
        if entries and not entries[-1].action and not entries[-1].refused:
            entries[-1] = dataclasses.replace(entries[-1], **fields)
        else:
            self.record(**fields)


def _whom() -> str:
    session: Session | None = g.get("session")
    if session is not None:
        return f"session:{session.key}"
    user: User = g.get("user", NOBODY)
    return f"{user.how}:{user.name}"


def _peer() -> str:
    """The address of the connection; "" for a unix socket."""
    client = request.scope.get("client")
    return client[0] if client else ""


def _given_host() -> str:
    """The host that the request names, with its port."""
    return request.headers.get(":authority", "")


def _retry(status: int, code: str, wait_s: float) -> Response:
    answer = responses.error(status, code)
    answer.headers["Retry-After"] = str(max(1, round(wait_s + 0.5)))
    return answer


def open_access(
    options: NsqadminOptions,
    hosts: Iterable[str],
    now_s: Callable[[], float] = trio.current_time,
) -> Access:
    """The access control that ``options`` require, and a log line on who may do what.

    Args:
        options: validated.
        hosts: the addresses that are listened on, without port; "" is a unix socket.
        now_s: the clock of sessions and waiting times, in seconds.

    Raises:
        OptionsError: the options for access are no good, or one of their files is.
    """
    mode = decide(options, hosts)
    users = _users(options, mode, now_s)
    try:
        access = Access(options, mode, users, now_s)
    except OSError as error:
        reason = f"failed to open --audit-file ({options.audit_file}) - {error.strerror}"
        raise OptionsError(reason) from None
    warn, text = explain(mode, options)
    log.log(logging.WARNING if warn else logging.INFO, "%s", text)
    return access


def _users(options: NsqadminOptions, mode: Mode, now_s: Callable[[], float]) -> Users:
    if mode is not Mode.PASSWORD:
        return FixedUsers()
    if not options.users_file:
        password = secrets.token_urlsafe(12)
        # The only password that is ever logged; otherwise nobody would know it.
        log.warning("ACCESS: no users file: sign in as admin, password %s", password)
        return FixedUsers(Account("admin", Role.ADMIN, hash_password(password)))
    try:
        return UsersFile(options.users_file, now_s)
    except UsersError as error:
        reason = f"failed to read --users-file ({options.users_file}) - {error}"
        raise OptionsError(reason) from None
