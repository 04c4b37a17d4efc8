"""An API server that knows several users: a proxy in front of the embedded one, which has one administrator.

It decides by manifests of RBAC (`rbac`), and answers SelfSubjectReviews of authenticated users.
"""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import urllib3

from tests.fakes.rbac import Access, Rules
from tests.fakes.recording_proxy import RecordingProxy

REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


class TokenGate(RecordingProxy):
    """``users`` has each valid token's user name and rules; the test may change it."""

    def __init__(self, kubeconfig: Path, users: Mapping[str, tuple[str, Rules]]) -> None:
        super().__init__(kubeconfig)
        self.users = dict(users)
        self._admin = f"Bearer {self.document['users'][0]['user']['token']}"

    def forward(self, verb: str, path: str, body: bytes | None, headers: dict[str, str]) -> Any:
        given = next((value for name, value in headers.items() if name.lower() == "authorization"), "")
        found = self.users.get(given.removeprefix("Bearer "))
        if found is None:
            return _answer(401, {"kind": "Status", "reason": "Unauthorized", "message": "Unauthorized", "code": 401})
        name, rules = found
        if path == REVIEWS and verb == "POST":
            return _answer(201, {"kind": "SelfSubjectReview", "status": {"userInfo": {"username": name}}})
        access = Access.of_request(verb, path)
        if access is not None and not rules.allow(access):
            said = f'{access.resource} is forbidden: User "{name}" cannot {access.verb} resource "{access.resource}"'
            return _answer(403, {"kind": "Status", "reason": "Forbidden", "message": said, "code": 403})
        kept = {key: value for key, value in headers.items() if key.lower() != "authorization"}
        return super().forward(verb, path, body, {**kept, "Authorization": self._admin})


def _answer(status: int, body: Mapping[str, Any]) -> urllib3.HTTPResponse:
    data = json.dumps({"apiVersion": "v1", **body}).encode()
    headers = {"content-type": "application/json"}
    return urllib3.HTTPResponse(body=io.BytesIO(data), status=status, headers=headers, preload_content=False)
