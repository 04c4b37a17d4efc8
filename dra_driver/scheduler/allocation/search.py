"""The search: depth first over claims, requests and devices, first fit, with backtracking. Follows ``allocateOne`` of
structured/internal/incubating/allocator_incubating.go in k8s.io/dynamic-resource-allocation, as a loop over a stack of
choices: a pod may have more claims and devices than Python has frames. `state` decides about one device."""

from enum import Enum

from msgspec import Struct

from dra_driver.core.errors import AllocationError
from dra_driver.scheduler.allocation.requests import MAX_DEVICES, Alternative, DeviceRequest
from dra_driver.scheduler.allocation.state import AllocationState, Candidates, Pick


class _Answer(Enum):
    DONE = "done"
    DEEPER = "deeper"
    FAILED = "failed"
    EXCEEDED = "exceeded"


class _Choice(Struct):
    claim: int
    request: DeviceRequest
    tried: int = 0
    all_exceeded: bool = True


class _Slot(Struct):
    """The ``have``-th device of a request. ``position`` is the next candidate to try."""

    claim: int
    alternative: Alternative
    candidates: Candidates
    have: int
    position: int
    pick: Pick | None = None


class Search:
    """The search for one pod on one node. Used once, by one thread."""

    def __init__(self, state: AllocationState) -> None:
        self._state = state
        self._decoded = state.decoded
        self._stack: list[_Choice | _Slot] = []
        self.chosen: list[list[Alternative]] = [[] for _ in self._decoded]
        self.stuck_at = ""
        self._answer: _Answer | None = None

    def run(self, pause_after: int | None = None) -> bool | None:
        """Return whether all claims fit; the picks are then in the state. None if ``pause_after`` steps did not
        suffice; another call continues. Raises AllocationError and the errors of `cel`."""
        budget = self._state.budget
        if self._answer is None:
            self._answer = self._enter(0, 0)
        while self._answer is not _Answer.DONE:
            if not self._stack:
                if self._answer is _Answer.EXCEEDED:
                    raise AllocationError(f"{self._decoded[0].label}: allocation max size exceeded")
                return False
            if pause_after is not None and budget.steps > pause_after:
                return None
            top = self._stack[-1]
            if self._answer is _Answer.DEEPER:
                self._answer = self._advance(top)
            else:
                self._answer = self._resume(top, self._answer)
        return True

    def _enter(self, claim: int, request: int) -> _Answer:
        while claim < len(self._decoded) and request >= len(self._decoded[claim].requests):
            claim, request = claim + 1, 0
        if claim == len(self._decoded):
            return _Answer.DONE
        wanted = self._decoded[claim].requests[request]
        self.stuck_at = f"{self._decoded[claim].label}, request {wanted.name}"
        if wanted.has_choice:
            self._stack.append(_Choice(claim, wanted))
            return _Answer.DEEPER
        return self._fill(wanted.alternatives[0], 0, 0)

    def _fill(self, alternative: Alternative, have: int, position: int) -> _Answer:
        chosen = self.chosen[alternative.claim]
        chosen[alternative.place :] = [alternative]
        candidates = self._state.candidates(alternative)
        if alternative.wants_all and not candidates.size:
            return _Answer.FAILED
        if have >= candidates.size:
            return self._enter(alternative.claim, alternative.place + 1)
        if len(self._state.picks[alternative.claim]) + candidates.size - have > MAX_DEVICES:
            return self._exceeded(alternative.claim)
        self._stack.append(_Slot(alternative.claim, alternative, candidates, have, position))
        return _Answer.DEEPER

    def _advance(self, top: _Choice | _Slot) -> _Answer:
        if isinstance(top, _Choice):
            if top.tried < len(top.request.alternatives):
                top.tried += 1
                return self._fill(top.request.alternatives[top.tried - 1], 0, 0)
            self._stack.pop()
            return self._exceeded(top.claim) if top.all_exceeded else _Answer.FAILED
        following = self._pick(top)
        if top.pick is None:
            self._stack.pop()
            return _Answer.FAILED
        top.position = following
        alternative = top.alternative
        if alternative.wants_all and self._state.all_continues_as_first:  # a mistake of 1.34 and 1.35
            alternative = self._decoded[alternative.claim].requests[alternative.place].alternatives[0]
        return self._fill(alternative, top.have + 1, following if self._state.combines else 0)

    def _pick(self, top: _Slot) -> int:
        """Allocates the next possible device; returns the position of the candidate after it."""
        alternative = top.alternative
        if alternative.wants_all:
            top.pick = self._state.allocate(alternative, top.candidates.every[top.have], must=True, have=top.have)
            return 0
        position = top.position
        if self._state.combines and top.candidates.is_short(position, top.candidates.size - top.have):
            return position
        while top.pick is None:
            found = top.candidates.next(position)
            if found is None:
                break
            device, position = found
            top.pick = self._state.allocate(alternative, device, must=False, have=top.have)
        return position

    def _resume(self, top: _Choice | _Slot, answer: _Answer) -> _Answer:
        if isinstance(top, _Choice):
            if answer is _Answer.FAILED:
                top.all_exceeded = False
            return _Answer.DEEPER
        if top.pick is not None:
            self._state.deallocate(top.alternative, top.pick)
            top.pick = None
        if answer is _Answer.EXCEEDED or top.alternative.wants_all:
            self._stack.pop()
            return self._exceeded(top.claim) if answer is _Answer.EXCEEDED else answer
        return _Answer.DEEPER

    def _exceeded(self, claim: int) -> _Answer:
        """Too many devices in a claim: its earlier requests try other subrequests; for other claims it is a failure."""
        below = self._stack[-1].claim if self._stack else 0
        return _Answer.EXCEEDED if below == claim else _Answer.FAILED
