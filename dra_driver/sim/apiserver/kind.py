"""The description of one kind of object: names (metav1.APIResource), scope and write rules (rest.RESTCreateStrategy and
its siblings). `kinds` has all kinds."""

from collections.abc import Callable

from msgspec import Struct, field

from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.validation import StatusCause, dns_subdomain


class Review(Struct, frozen=True, kw_only=True):
    """The context of a validation. ``old`` is the stored object, None on creates. ``subresource`` is "" for the object
    itself. ``check_cel`` returns None for an expression that compiles, else the compiler's message.
    ``namespace_labels`` returns the labels of the object's namespace."""

    old: Obj | None = None
    subresource: str = ""
    check_cel: Callable[[str], str | None] = lambda _expression: None
    namespace_labels: Callable[[], dict[str, str]] = dict


class WriteRules(Struct, frozen=True, kw_only=True):
    """A kind's behaviour on writes. Each function may change only its first argument. ``default`` sets the defaults of
    decoding. ``prepare_create`` and ``prepare_update`` (object, stored object, subresource) run before validation."""

    default: Callable[[Obj], None] = lambda _obj: None
    prepare_create: Callable[[Obj], None] = lambda _obj: None
    prepare_update: Callable[[Obj, Obj, str], None] = lambda _obj, _old, _sub: None
    validate: Callable[[Obj, Review], list[StatusCause]] = lambda _obj, _review: []


class ResourceKind(Struct, frozen=True, kw_only=True, eq=False):
    """One served kind, compared by identity. ``name_rule`` returns a message for each rule that metadata.name breaks.
    ``selectable`` are dotted paths for field selectors besides metadata.name and metadata.namespace.
    ``default_propagation`` is for deletes without one; with ``returns_deleted`` a delete returns the object, not a
    Status. ``keeps_status_on_create`` is for nodes."""

    kind: str
    group: str = ""
    version: str = "v1"
    name_rule: Callable[[str], list[str]] = dns_subdomain
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

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def plural(self) -> str:
        """The name in paths, as Kubernetes derives it from the kind (k8s.io/apimachinery UnsafeGuessKindToResource)."""
        if self.singular.endswith("s"):
            return f"{self.singular}es"
        return f"{self.singular[:-1]}ies" if self.singular.endswith("y") else f"{self.singular}s"

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def qualified(self) -> str:
        """The collection's name in messages, such as ``pods`` or ``resourceclaims.resource.k8s.io``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def has_status(self) -> bool:
        """Return whether status is written through the status subresource only."""
        return "status" in self.subresources
