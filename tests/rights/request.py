"""Requests that have to be refused, as values, and what the API server says to them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dra_driver.core.errors import ForbiddenError, InvalidObjectError, KubernetesApiError
from dra_driver.kube.rest import RestClient

Obj = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """One request. ``what`` says in a few words what it would do; ``verb`` is HTTP's."""

    what: str
    verb: str
    path: str
    body: Obj | None = None
    query: Mapping[str, str] = field(default_factory=dict)

    def send(self, rest: RestClient) -> None:
        match self.verb:
            case "GET":
                rest.get(self.path, dict(self.query) or None)
            case "POST":
                rest.create(self.path, self.body or {})
            case "PUT":
                rest.update(self.path, self.body or {})
            case "PATCH":
                rest.merge_patch(self.path, self.body or {})
            case "DELETE":
                rest.delete(self.path)
            case other:
                raise ValueError(f"no such verb: {other}")


def refusal(rest: RestClient, request: Request) -> str:
    """The sentence of a refusal. Anything else fails: the request was done, or not for lack of rights.

    A refusal is a 403, or a 422 whose cause is that a field must not be changed with these rights: so the API server
    answers to writes of the status of claims (kubernetes/kubernetes pkg/registry/resource/resourceclaim).
    """
    try:
        request.send(rest)
    except ForbiddenError as error:
        return str(error).partition(" failed: 403 Forbidden: ")[2] or str(error)
    except InvalidObjectError as error:
        said = str(error).partition(" failed: 422 Invalid: ")[2]
        if ": Forbidden: " not in said:
            raise AssertionError(f"{request.what}: not forbidden: {error}") from error
        return said
    except KubernetesApiError as error:
        raise AssertionError(f"{request.what}: not forbidden: {error}") from error
    raise AssertionError(f"{request.what}: done")
