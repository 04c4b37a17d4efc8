"""Takes back what was done for a claim, from any state, as often as needed.

Owns the reverse order: note it, remove the CDI file, forget. Refuses to know why. Every step is repeatable, and a run
that dies between two of them leaves an entry in state ``unpreparing``, which the next unprepare, a claim that wants the
device, or `recover` carries on with.

Callers hold the claim's lock.
"""

from dra_driver.claims.entry import Attempt, Entry, State
from dra_driver.claims.tools import Tools
from dra_driver.model.ids import ClaimUid


def undo(tools: Tools, uid: ClaimUid, *, only: Attempt | None = None) -> bool:
    """Remove the claim's CDI file and its entry, durably; False when there was no entry.

    With ``only``, an entry that is another attempt's is left alone: False. Raises `StorageError`; the claim then stays
    in state ``unpreparing``, its devices held.
    """
    attempt = tools.journal.start_unprepare(uid, only=only)
    if attempt is None:
        remove_stray_file(tools, uid)
        return False
    tools.writer.remove_claim(uid)
    if not tools.journal.forget(uid, attempt):
        # Another process took the entry over in between: it is its work now, and its file if it wrote one.
        remove_stray_file(tools, uid)
    tools.bell.ring()
    return True


def remove_stray_file(tools: Tools, uid: ClaimUid) -> None:
    """Remove the claim's CDI file if the claim has no entry. Raises `StorageError`.

    Within one journal lock, because another process may be about to begin the same claim and write its file.
    """
    with tools.journal.exclusive():
        if tools.journal.entry(uid) is None:
            tools.writer.remove_claim(uid)


def is_left_over(tools: Tools, entry: Entry) -> bool:
    """Whether nobody works on a half-done entry any more. Its claim's lock has to be held for entries of this run."""
    if entry.state is State.PREPARED:
        return False
    return entry.attempt.owner == tools.owners.own or not tools.owners.is_alive(entry.attempt.owner)
