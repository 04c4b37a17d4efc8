"""Give the models of parameters and policies strictness, quantities and the rules of ``config/rules.py``. The node
process loads the generated schema instead: pydantic takes 9 MiB."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import core_schema

from dra_driver.config.rules import RULES
from dra_driver.config.schema import quantity_of, repeated, shown

MIB: Final = 2**20
MOST_BYTES: Final = 2**60
"""One exbibyte, which no device has; it bounds numbers that are printed into commands."""


class Strict(BaseModel):
    """Unknown fields and loose types are errors; null in an optional field means absent. ``rules`` are names of
    conditions over several fields, evaluated when all fields are valid."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, alias_generator=to_camel)
    rules: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="wrap")
    @classmethod
    def _keep_rules(cls, value: Any, handler: Any) -> Any:
        model = handler(value)
        for name in cls.rules:
            if RULES[name].broken(value):
                raise ValueError(RULES[name].message)
        return model

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> Any:
        schema = handler(core)
        found = handler.resolve_ref_schema(schema)
        if cls.rules:
            found["x-rules"] = list(cls.rules)
        if cls.model_config.get("extra") == "allow":
            found["x-open"] = True
        return schema


def text(*, longest: int, says: str = "text", shortest: int = 1, pattern: str | None = None) -> Any:
    """A text field; ``pattern`` must match the whole text, ``says`` is the expected form in words."""
    return Field(
        min_length=shortest,
        max_length=longest,
        pattern=f"^(?:{pattern})$" if pattern else None,
        json_schema_extra={"x-says": says},
    )


def optional(about: str, *, default: object = None, alias: str | None = None) -> Any:
    """A field that may be absent; the schema shows ``default``."""
    extra: Any = None if default is None else {"default": default}
    return Field(None, description=about, alias=alias, json_schema_extra=extra)


def _memory(least: int, most: int = MOST_BYTES) -> Any:
    def check(value: object) -> object:
        quantity_of(value, least, most)
        return value

    return Annotated[Any, BeforeValidator(check), WithJsonSchema({"x-quantity": {"min": least, "max": most}})]


MemoryQuantity = _memory(MIB)
"""At least 1Mi, as text or as a whole number."""
MemoryOrNone = _memory(0)
"""An amount of memory that may be 0."""
HostMemory = _memory(MIB, 65536 * MIB)
"""1Mi to 64Gi: more would keep pods off most nodes."""


@dataclass(frozen=True)
class AtMost:
    """Annotates a list or mapping with its maximum length, which is checked before its entries."""

    count: int
    unique: str | None = None
    """The field in which no two items of a list have the same value."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        inner = handler(source)
        checked = core_schema.no_info_after_validator_function(self._repeats, inner)
        return core_schema.no_info_before_validator_function(self._length, checked)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> Any:
        found = handler(schema)
        found["maxItems" if found["type"] == "array" else "maxProperties"] = self.count
        if self.unique:
            found["x-unique"] = self.unique
        return found

    def _length(self, value: Any) -> Any:
        if isinstance(value, list | dict) and len(value) > self.count:
            raise ValueError(f"expected at most {self.count} entries, got {len(value)}")
        return value

    def _repeats(self, value: Any) -> Any:
        if self.unique:
            twice = repeated([item.model_dump(by_alias=True) for item in value], self.unique)
            if twice is not None:
                raise ValueError(f"two entries have {self.unique} {shown(twice)}")
        return value
