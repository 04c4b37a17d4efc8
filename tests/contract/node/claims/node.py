"""A claim service in its own process, for tests that kill it, race it or limit its disk.

usage: python -m tests.contract.node.claims.node STATE_DIR CDI_DIR MODE [argument]

Journal, owner locks and CDI writer are the real ones; the API server's claims are made up from their number: claim N is
allocated GPU N modulo 8, all claims are allocated GPU 0 in mode ``race``.
"""

import json
import resource
import sys
import time
from pathlib import Path

from dra_driver.core.errors import ClaimReplacedError, DraError
from dra_driver.core.model.claim import AllocatedClaim, ClaimRef
from dra_driver.hardware.cdi.writer import CdiWriter
from dra_driver.node.claims.waiting import RetryPolicy
from dra_driver.node.claims.workflow.service import Claims, open_claims
from tests.fakes.claims import NAMES, POOL, FakeCdiProvider, FakeClaims, claim, machine, ref, result

GPUS = 8


class EveryClaim(FakeClaims):
    """Every claim whose UID starts with its number exists."""

    def __init__(self, gpus: int) -> None:
        super().__init__()
        self._gpus = gpus

    def read(self, of: ClaimRef, *, within_s: float | None = None) -> AllocatedClaim:
        number = int(of.uid[:8], 16)
        if ref(number).uid != of.uid:
            raise ClaimReplacedError(f"claim {of} does not exist any more")
        return claim(number, result(f"gpu-{number % self._gpus}"))


def open_claims_service(state: str, cdi: str, *, gpus: int = GPUS) -> Claims:
    return open_claims(
        state,
        pool=POOL,
        names=NAMES,
        reader=EveryClaim(gpus),
        writer=CdiWriter(cdi, NAMES, metadata_dir=f"{state}/dra-device-metadata"),
        metadata=True,
        provider=FakeCdiProvider(),
        snapshot=lambda: machine(GPUS),
        boot_id="boot",
        retry_policy=RetryPolicy(call_s=5.0, in_use_s=0.0),
    )


def churn(claims: Claims, start: int) -> None:
    """Prepare and unprepare eight claims for ever; print a line before and after each call."""
    number = start
    while True:
        what = "unprepare" if (number // GPUS) % 2 else "prepare"
        call = getattr(claims.service, what)
        of = ref(number % GPUS)
        say({"begin": what, "claim": number % GPUS})
        answer = call([of])[of.uid]
        assert not isinstance(answer, DraError), answer
        say({"done": what, "claim": number % GPUS})
        number += 1


def race(claims: Claims, own: int, go: Path, rounds: int) -> None:
    """In each round, at the same moment as the other process, prepare a claim for GPU 0, then unprepare it."""
    for number in range(rounds):
        of = ref(own * 1000 + number)
        while not (go / f"go-{number}").exists():
            time.sleep(0.0005)
        answer = claims.service.prepare([of])[of.uid]
        say({"round": number, "won": not isinstance(answer, DraError), "answer": str(answer)})
        while not (go / f"over-{number}").exists():
            time.sleep(0.0005)
        assert claims.service.unprepare([of])[of.uid] is None
        say({"free": number})


def small_files(claims: Claims, limit: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    errors = []
    for number in range(GPUS):
        answer = claims.service.prepare([ref(number)])[ref(number).uid]
        errors += [str(answer)] if isinstance(answer, DraError) else []
    say({"errors": errors, "prepared": len(claims.journal.entries())})
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
    again = [claims.service.prepare([ref(number)])[ref(number).uid] for number in range(GPUS)]
    errors = [str(answer) for answer in again if isinstance(answer, DraError)]
    say({"errors": errors, "prepared": len(claims.journal.entries())})


def say(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main(state: str, cdi: str, mode: str, *arguments: str) -> None:
    claims = open_claims_service(state, cdi, gpus=1 if mode == "race" else GPUS)
    claims.service.recover()
    say({"ready": True})
    match mode:
        case "churn":
            churn(claims, int(arguments[0]))
        case "race":
            race(claims, int(arguments[0]), Path(arguments[1]), int(arguments[2]))
        case "small-files":
            small_files(claims, int(arguments[0]))
    claims.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
