"""What the API server knows about one kind of object: its names, its scope, its rules and its columns.

A `Kind` is data; `kinds.py` holds the table of all of them. Nothing here knows a particular kind. Naming follows
Kubernetes' discovery documents (metav1.APIResource) and the registry strategies (rest.RESTCreateStrategy and its
siblings).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.problems import FieldProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """What a validation rule may ask besides the object.

    ``old`` is the stored object on updates, None on creates. ``subresource`` is the one written through ("" for the
    object itself). ``check_cel`` answers None for an expression that compiles, else the compiler's message.
    ``namespace_labels`` are the labels of the object's namespace.
    """

    old: Obj | None = None
    subresource: str = ""
    check_cel: Callable[[str], str | None] = lambda _expression: None
    namespace_labels: Callable[[], dict[str, str]] = dict


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRules:
    """A kind's behaviour on writes. Every function changes only the object that it is handed as its first argument.

    ``default`` fills what the real server fills when it decodes an object. ``prepare_create`` and ``prepare_update``
    run before validation (``prepare_update`` gets the stored object second and the subresource third).
    """

    default: Callable[[Obj], None] = lambda _obj: None
    prepare_create: Callable[[Obj], None] = lambda _obj: None
    prepare_update: Callable[[Obj, Obj, str], None] = lambda _obj, _old, _sub: None
    validate: Callable[[Obj, Review], list[FieldProblem]] = lambda _obj, _review: []
    warn: Callable[[Obj], list[str]] = lambda _obj: []


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`; ``priority`` 1 is shown with ``-o wide`` only."""

    name: str
    type: str = "string"
    priority: int = 0
    format: str = ""


@dataclass(frozen=True, slots=True)
class Printer:
    """Columns and the function that fills them: ``cells(obj, now)`` has one value per column."""

    columns: Sequence[Column]
    cells: Callable[[Obj, datetime], list[object]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResourceKind:
    """One served kind. Compared by identity: the constants in `kinds.py` are the only instances.

    ``name_rule`` validates metadata.name and answers the rule's text for each breach. ``selectable`` are the dotted
    paths that field selectors may use besides metadata.name and metadata.namespace. ``default_propagation`` is what
    a delete without a propagation policy does. ``returns_deleted`` says that a finished delete answers with the
    object, not a Status. ``keeps_status_on_create`` is for kinds whose writer sends status along (nodes).
    """

    group: str
    version: str
    kind: str
    plural: str
    name_rule: Callable[[str], list[str]]
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    namespaced: bool = True
    subresources: tuple[str, ...] = ()
    generation: bool = False
    keeps_status_on_create: bool = False
    returns_deleted: bool = False
    needs_resource_version: bool = False
    create_on_update: bool = False
    selectable: tuple[str, ...] = ()
    default_propagation: str = "Background"
    rules: WriteRules = field(default_factory=WriteRules)
    printer: Printer | None = None
    served_also_as: tuple[tuple[str, str], ...] = ()

    @property
    def api_version(self) -> str:
        """``v1`` or ``group/version``, as objects carry it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def singular(self) -> str:
        """The kind in lower case."""
        return self.kind.lower()

    @property
    def qualified(self) -> str:
        """``pods`` or ``resourceclaims.resource.k8s.io``: how messages name the collection."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def has_status(self) -> bool:
        """Whether status is written through its own subresource only."""
        return "status" in self.subresources
