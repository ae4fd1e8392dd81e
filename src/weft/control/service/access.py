"""Who may call what: identities of callers, their roles, and refusals that are logged.

An identity is the user behind a Unix socket (or behind a TCP connection on this machine), or the
name in a certificate. A *reader* asks, an *application* also registers and connects, an *operator*
may call everything and act on the registrations of others. The file lists who has a role: a user by
name, a group as `@NAME`, a certificate as `tls:NAME`, anybody identified as `*`. Root and the user
of the controller are operators. A caller without an identity has no role. Of an identity that is
refused all the time only some attempts are logged, and the others counted.
Entry points: `Access`, `Identity`, `find_user_identity`, `list_unknown_users`.
"""

from __future__ import annotations

import grp
import os
import pwd
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from weft.control.runtime.audit import LogLine
from weft.control.runtime.config import Roles
from weft.control.service.refusals import Refused

READER, APPLICATION, OPERATOR = range(1, 4)
_NAMES = {READER: "a reader", APPLICATION: "an application", OPERATOR: "an operator"}
_NEEDED = {"Status": READER, "Explain": READER, "Plan": READER, "Apply": OPERATOR}
_NEEDED |= {"Rollback": OPERATOR, "Backup": OPERATOR}  # all others are an application's
_CERTIFICATE = "tls:"
_GROUPS_S = 10.0  # how long the groups of a user are remembered
_LOGGED, _LOG_S = 20, 10.0  # refusals of one identity that are logged in this time
_MAX_REFUSED = 4096  # identities whose refusals are counted


@dataclass(frozen=True, slots=True)
class Identity:
    """`name` as the file lists it; empty: unknown. `user`: its number, if it is a user."""

    name: str
    user: int | None = None

    def __str__(self) -> str:
        return self.name or "an unknown caller"


@lru_cache(1024)
def find_user_identity(user: int) -> Identity:
    try:
        return Identity(pwd.getpwuid(user).pw_name, user)
    except KeyError:
        return Identity(f"uid:{user}", user)


def build_certificate_identity(name: str) -> Identity:
    return Identity(f"{_CERTIFICATE}{name}")


@dataclass(slots=True)
class _Refusals:
    """Of one identity: since when they are counted, and how many there were."""

    since_s: float
    count: int = 0


class RefusalLog:
    """Logs refused attempts: of each identity so many at a time, then how many more there were."""

    def __init__(self, log: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._log, self._clock = log, clock
        self._of: dict[str, _Refusals] = {}

    def write(self, identity: Identity, attempt: str) -> None:
        now_s = self._clock()
        refusals = self._of.get(identity.name)
        if refusals is None or now_s - refusals.since_s >= _LOG_S:
            self._close(identity.name)
            refusals = self._of[identity.name] = _Refusals(now_s)
            if len(self._of) > _MAX_REFUSED:
                self._close(next(iter(self._of)))
        refusals.count += 1
        if refusals.count <= _LOGGED:
            line = LogLine(
                f"refused: {attempt}", "warning", {"who": str(identity), "what": attempt}
            )
            self._log(line)

    def _close(self, name: str) -> None:
        refusals = self._of.pop(name, None)
        if refusals is not None and refusals.count > _LOGGED:
            more = refusals.count - _LOGGED
            self._log(LogLine(f"refused: {more} more attempts of {Identity(name)}", "warning"))


class Access:
    """Checks callers against the roles of the file; a refused attempt is logged."""

    def __init__(
        self, roles: Roles, log: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._refusals, self._log, self._clock = RefusalLog(log, clock), log, clock
        self._listed = {
            OPERATOR: roles.operators,
            APPLICATION: roles.applications,
            READER: roles.readers,
        }

    def check(self, identity: Identity, call: str) -> None:
        """Refuses a call that needs a role the caller does not have."""
        needed = _NEEDED.get(call, APPLICATION)
        if self.find_role(identity) < needed:
            problem = f"{call}: {identity} is not {_NAMES[needed]}"
            self._refusals.write(identity, problem)
            remedy = f"ask an operator to list it under {_NAMES[needed].split()[1]}s of [access]"
            raise Refused("PERMISSION_DENIED", f"{problem}; {remedy}")

    def report(self, identity: Identity, problem: str) -> None:
        """Logs an attempt that was refused for what the caller may have."""
        self._refusals.write(identity, f"{identity}: {problem}")

    def note(self, identity: Identity, action: str) -> None:
        """Logs what an operator does that changes nothing and still matters."""
        self._log(LogLine(f"{identity} {action}", fields={"who": str(identity), "what": action}))

    def is_operator(self, identity: Identity) -> bool:
        return self.find_role(identity) == OPERATOR

    def find_role(self, identity: Identity) -> int:
        """The highest role; 0: none."""
        if not identity.name:
            return 0
        if identity.user is not None and identity.user in (0, os.geteuid()):
            return OPERATOR
        roles = [role for role, listed in self._listed.items() if self._has(identity, listed)]
        return max(roles, default=0)

    def _has(self, identity: Identity, listed: tuple[str, ...]) -> bool:
        if identity.name in listed or "*" in listed:
            return True
        groups = {name[1:] for name in listed if name.startswith("@")}
        if not groups or identity.user is None:
            return False
        return not groups.isdisjoint(_list_groups(identity.user, self._clock() // _GROUPS_S))


def list_unknown_users(roles: Roles) -> Iterator[str]:
    """A warning for each listed user or group that this machine does not have."""
    for name in dict.fromkeys((*roles.operators, *roles.applications, *roles.readers)):
        find = grp.getgrnam if name.startswith("@") else pwd.getpwnam
        if name == "*" or name.startswith(_CERTIFICATE):
            continue
        try:
            find(name.removeprefix("@"))
        except KeyError:
            kind = "group" if name.startswith("@") else "user"
            yield f"[access] names {name!r}, and this machine has no such {kind}"


@lru_cache(1024)
def _list_groups(user: int, _period: float) -> frozenset[str]:
    """Names of a user's groups; a directory may take long to say, so they are remembered."""
    try:
        entry = pwd.getpwuid(user)
    except KeyError:
        return frozenset()
    names = set()
    for number in os.getgrouplist(entry.pw_name, entry.pw_gid):
        with suppress(KeyError):  # a group without a name
            names.add(grp.getgrgid(number).gr_name)
    return frozenset(names)
