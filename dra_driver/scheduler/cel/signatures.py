"""Every function of Kubernetes 1.36's environment for stored device selectors. One line is one overload: function,
``.`` for methods or ``-`` for functions, binding, overload id, argument types, result.

Binding: ``u``, ``b`` and ``f`` check the types of their one, two or any number of arguments at run time; ``f``
evaluates no argument after a failed one. ``s`` is shared by all overloads of the function, without a check. Sources:
cel-go common/stdlib/standard.go, cel/library.go, ext/{strings,lists,sets,comprehensions}.go; k8s.io/apiserver
pkg/cel/library and k8s.io/dynamic-resource-allocation cel/compile.go.
"""

from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

from dra_driver.scheduler.cel.types import Type, parse_type, type_parameters

FUNCTION_SINCE: Final = MappingProxyType({"includes": "1.36"})
"""Function -> the first version that has it (IntroducedVersion, k8s.io/dynamic-resource-allocation cel/compile.go)."""

FUNCTION_GATE: Final = MappingProxyType({"includes": "DRAListTypeAttributes"})
"""Function -> the feature gate without which the API server refuses it in new objects. It is off by default in 1.36."""

LACKS_NONE: Final[frozenset[str]] = frozenset()  # a version with every function

LACKS_BEFORE_1_36: Final = frozenset({"includes"})  # what 1.34 and 1.35 lack


_TABLE: Final = """
# operators
!_ -s logical_not bool -> bool
-_ -s negate_double double -> double
-_ -s negate_int64 int -> int
@in -s in_list A list(A) -> bool
@in -s in_map A map(A,B) -> bool
@not_strictly_false -u not_strictly_false bool -> bool
_!=_ -s not_equals A A -> bool
_%_ -s modulo_int64 int int -> int
_%_ -s modulo_uint64 uint uint -> uint
_&&_ -s logical_and bool bool -> bool
_*_ -s multiply_double double double -> double
_*_ -s multiply_int64 int int -> int
_*_ -s multiply_uint64 uint uint -> uint
_+_ -s add_bytes bytes bytes -> bytes
_+_ -s add_double double double -> double
_+_ -s add_duration_duration duration duration -> duration
_+_ -s add_duration_timestamp duration timestamp -> timestamp
_+_ -s add_timestamp_duration timestamp duration -> timestamp
_+_ -s add_int64 int int -> int
_+_ -s add_list list(A) list(A) -> list(A)
_+_ -s add_string string string -> string
_+_ -s add_uint64 uint uint -> uint
_-_ -s subtract_double double double -> double
_-_ -s subtract_duration_duration duration duration -> duration
_-_ -s subtract_int64 int int -> int
_-_ -s subtract_timestamp_duration timestamp duration -> timestamp
_-_ -s subtract_timestamp_timestamp timestamp timestamp -> duration
_-_ -s subtract_uint64 uint uint -> uint
_/_ -s divide_double double double -> double
_/_ -s divide_int64 int int -> int
_/_ -s divide_uint64 uint uint -> uint
_==_ -s equals A A -> bool
_?._ -s select_optional_field dyn string -> opt(V)
_?_:_ -s conditional bool A A -> A
_[?_] -s list_optindex_optional_int list(V) int -> opt(V)
_[?_] -s optional_list_optindex_optional_int opt(list(V)) int -> opt(V)
_[?_] -s map_optindex_optional_value map(K,V) K -> opt(V)
_[?_] -s optional_map_optindex_optional_value opt(map(K,V)) K -> opt(V)
_[_] -s index_list list(A) int -> A
_[_] -s index_map map(A,B) A -> B
_[_] -s optional_list_index_int opt(list(V)) int -> opt(V)
_[_] -s optional_map_index_value opt(map(K,V)) K -> opt(V)
_||_ -s logical_or bool bool -> bool
cel.@mapInsert -f @mapInsert_map_key_value map(K,V) K V -> map(K,V)
cel.@mapInsert -b @mapInsert_map_map map(K,V) map(K,V) -> map(K,V)
# size
dyn -s to_dyn A -> dyn
size -s size_bytes bytes -> int
size .s bytes_size bytes -> int
size -s size_list list(A) -> int
size .s list_size list(A) -> int
size -s size_map map(A,B) -> int
size .s map_size map(A,B) -> int
size -s size_string string -> int
size .s string_size string -> int
type -s type A -> type(A)
# strings and regular expressions
charAt .b string_char_at_int string int -> string
contains .b contains_string string string -> bool
endsWith .b ends_with_string string string -> bool
find .b string_find_string string string -> string
findAll .b string_find_all_string string string -> list(string)
findAll .f string_find_all_string_int string string int -> list(string)
format .f string_format string list(dyn) -> string
in -s in_list A list(A) -> bool
in -s in_map A map(A,B) -> bool
indexOf .b string_index_of_string string string -> int
indexOf .f string_index_of_string_int string string int -> int
lastIndexOf .b string_last_index_of_string string string -> int
lastIndexOf .f string_last_index_of_string_int string string int -> int
lowerAscii .u string_lower_ascii string -> string
matches -s matches string string -> bool
matches .s matches_string string string -> bool
replace .f string_replace_string_string string string string -> string
replace .f string_replace_string_string_int string string string int -> string
split .b string_split_string string string -> list(string)
split .f string_split_string_int string string int -> list(string)
startsWith .b starts_with_string string string -> bool
strings.quote -u strings_quote string -> string
substring .b string_substring_int string int -> string
substring .f string_substring_int_int string int int -> string
trim .u string_trim string -> string
upperAscii .u string_upper_ascii string -> string
# lists and sets
distinct .u list_distinct list(T) -> list(T)
flatten .u list_flatten list(list(T)) -> list(T)
flatten .b list_flatten_int list(dyn) int -> list(dyn)
indexOf .b list_a_index_of_int list(A) A -> int
join .u list_join list(string) -> string
join .b list_join_string list(string) string -> string
lastIndexOf .b list_a_last_index_of_int list(A) A -> int
lists.range -u lists_range int -> list(int)
reverse .u list_reverse list(T) -> list(T)
sets.contains -b list_sets_contains_list list(T) list(T) -> bool
sets.equivalent -b list_sets_equivalent_list list(T) list(T) -> bool
sets.intersects -b list_sets_intersects_list list(T) list(T) -> bool
slice .f list_slice list(T) int int -> list(T)
# device
includes .b dra_includes_dyn_dyn dyn dyn -> bool
# optionals
first .u list_first list(V) -> opt(V)
hasValue .u optional_hasValue opt(V) -> bool
last .u list_last list(V) -> opt(V)
optional.none -f optional_none -> opt(V)
optional.of -u optional_of V -> opt(V)
optional.ofNonZeroValue -u optional_ofNonZeroValue V -> opt(V)
optional.unwrap -u optional_unwrap list(opt(V)) -> list(V)
or .s optional_or_optional opt(V) opt(V) -> opt(V)
orValue .s optional_orValue_value opt(V) V -> V
unwrapOpt .u optional_unwrapOpt list(opt(V)) -> list(V)
value .u optional_value opt(V) -> V
# quantity and semver
add .b quantity_add Quantity Quantity -> Quantity
add .b quantity_add_int Quantity int -> Quantity
asApproximateFloat .u quantity_get_float Quantity -> double
asInteger .u quantity_get_int Quantity -> int
compareTo .b quantity_compare_to Quantity Quantity -> int
compareTo .b semver_compare_to Semver Semver -> int
isGreaterThan .b quantity_is_greater_than Quantity Quantity -> bool
isGreaterThan .b semver_is_greater_than Semver Semver -> bool
isInteger .u quantity_is_integer Quantity -> bool
isLessThan .b quantity_is_less_than Quantity Quantity -> bool
isLessThan .b semver_is_less_than Semver Semver -> bool
isQuantity -u is_quantity_string string -> bool
isSemver -u is_semver_string string -> bool
isSemver -b is_semver_string_bool string bool -> bool
major .u semver_major Semver -> int
minor .u semver_minor Semver -> int
patch .u semver_patch Semver -> int
quantity -u string_to_quantity string -> Quantity
semver -u string_to_semver string -> Semver
semver -b string_bool_to_semver string bool -> Semver
sign -u quantity_sign Quantity -> int
sub .b quantity_sub Quantity Quantity -> Quantity
sub .b quantity_sub_int Quantity int -> Quantity
# ip, cidr, url, format
cidr -u string_to_cidr string -> CIDR
containsCIDR .b cidr_contains_cidr_string CIDR string -> bool
containsCIDR .b cidr_contains_cidr CIDR CIDR -> bool
containsIP .b cidr_contains_ip_string CIDR string -> bool
containsIP .b cidr_contains_ip_ip CIDR IP -> bool
family .u ip_family IP -> int
format.named -u format-named string -> opt(Format)
getEscapedPath .u url_get_escaped_path URL -> string
getHost .u url_get_host URL -> string
getHostname .u url_get_hostname URL -> string
getPort .u url_get_port URL -> string
getQuery .u url_get_query URL -> map(string,list(string))
getScheme .u url_get_scheme URL -> string
ip -u string_to_ip string -> IP
ip .u cidr_ip CIDR -> IP
ip.isCanonical -u ip_is_canonical string -> bool
isCIDR -u is_cidr string -> bool
isGlobalUnicast .u ip_is_global_unicast IP -> bool
isIP -u is_ip string -> bool
isLinkLocalMulticast .u ip_is_link_local_multicast IP -> bool
isLinkLocalUnicast .u ip_is_link_local_unicast IP -> bool
isLoopback .u ip_is_loopback IP -> bool
isURL -u is_url_string string -> bool
isUnspecified .u ip_is_unspecified IP -> bool
masked .u cidr_masked CIDR -> CIDR
prefixLength .u cidr_prefix_length CIDR -> int
url -u string_to_url string -> URL
validate .b format-validate Format string -> opt(list(string))
# authorization (declared, no selector can hold its values)
allowed .u decision_allowed authz.Decision -> bool
check .b pathcheck_check authz.PathCheck string -> authz.Decision
check .b resourcecheck_check authz.ResourceCheck string -> authz.Decision
error .u decision_error authz.Decision -> string
errored .u decision_errored authz.Decision -> bool
fieldSelector .b authorizer_fieldselector authz.ResourceCheck string -> authz.ResourceCheck
group .b authorizer_group authz.Authorizer string -> authz.GroupCheck
labelSelector .b authorizer_labelselector authz.ResourceCheck string -> authz.ResourceCheck
name .b resourcecheck_name authz.ResourceCheck string -> authz.ResourceCheck
namespace .b resourcecheck_namespace authz.ResourceCheck string -> authz.ResourceCheck
path .b authorizer_path authz.Authorizer string -> authz.PathCheck
reason .u decision_reason authz.Decision -> string
resource .b groupcheck_resource authz.GroupCheck string -> authz.ResourceCheck
serviceAccount .f authorizer_serviceaccount authz.Authorizer string string -> authz.Authorizer
subresource .b resourcecheck_subresource authz.ResourceCheck string -> authz.ResourceCheck
# time
getHours .u duration_to_hours duration -> int
getMilliseconds .u duration_to_milliseconds duration -> int
getMinutes .u duration_to_minutes duration -> int
getSeconds .u duration_to_seconds duration -> int
"""

_ORDERED: Final = ("int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes")
_CONVERSIONS: Final = {
    "bool": "bool string",
    "bytes": "bytes string",
    "double": "double int string uint",
    "duration": "duration int string",
    "int": "int double duration string timestamp uint",
    "string": "string bool bytes double duration int timestamp uint IP CIDR",
    "timestamp": "timestamp int string",
    "uint": "uint double int string",
}
_WORDS: Final = {"int": "int64", "uint": "uint64", "IP": "ip", "CIDR": "cidr"}
_COMPARISONS: Final = {"_<_": "less", "_<=_": "less_equals", "_>_": "greater", "_>=_": "greater_equals"}
_COMPARED: Final = (
    "bool=bool int64=int int64_double=int,double int64_uint64=int,uint uint64=uint uint64_double=uint,double"
    " uint64_int64=uint,int double=double double_int64=double,int double_uint64=double,uint string=string bytes=bytes"
    " timestamp=timestamp duration=duration"
)
_TIME_PARTS: Final = (
    "getFullYear=year getMonth=month getDayOfYear=day_of_year getDayOfMonth=day_of_month getDate=day_of_month_1_based"
    " getDayOfWeek=day_of_week getHours=hours getMinutes=minutes getSeconds=seconds getMilliseconds=milliseconds"
)
FORMATS: Final = (
    *("byte", "date", "datetime", "dns1035Label", "dns1035LabelPrefix", "dns1123Label", "dns1123LabelPrefix"),
    *("dns1123Subdomain", "dns1123SubdomainPrefix", "labelValue", "qualifiedName", "uri", "uuid"),
)
"""Names of ``format.NAME()``."""


class Overload(NamedTuple):
    """One signature. ``arguments`` of a method start with the receiver; ``parameters`` are its free type names."""

    function: str
    method: bool
    binding: str
    id: str
    arguments: tuple[Type, ...]
    result: Type
    parameters: frozenset[str]


@lru_cache(maxsize=1)
def functions() -> dict[str, tuple[Overload, ...]]:
    found: dict[str, list[Overload]] = {}
    for line in (*_TABLE.splitlines(), *_templated()):
        if line and not line.startswith("#"):
            overload = _overload(line)
            found.setdefault(overload.function, []).append(overload)
    return {name: tuple(overloads) for name, overloads in found.items()}


def _overload(line: str) -> Overload:
    function, style, identifier, *arguments, _, result = line.split(" ")
    types = tuple(parse_type(text) for text in arguments)
    result_type = parse_type(result)
    parameters = frozenset().union(*(type_parameters(t) for t in (*types, result_type)))
    return Overload(function, style[0] == ".", style[1], identifier, types, result_type, parameters)


def _templated() -> list[str]:
    lines = []
    for target, sources in _CONVERSIONS.items():
        for source in sources.split():
            identifier = f"{_WORDS.get(source, source)}_to_{_WORDS.get(target, target)}"
            lines.append(f"{target} -u {identifier} {source} -> {target}")
    for operator, word in _COMPARISONS.items():
        for pair in _COMPARED.split():
            suffix, _, types = pair.partition("=")
            left, _, right = types.partition(",")
            lines.append(f"{operator} -s {word}_{suffix} {left} {right or left} -> bool")
    for name in _ORDERED:
        lines.append(f"sort .s list_{name}_sort list({name}) -> list({name})")
        lines.append(f"@sortByAssociatedKeys .s list_{name}_sortByAssociatedKeys list(T) list({name}) -> list(T)")
        lines.append(f"isSorted .u list_{name}_is_sorted_bool list({name}) -> bool")
        lines.append(f"min .u list_{name}_min_{name} list({name}) -> {name}")
        lines.append(f"max .u list_{name}_max_{name} list({name}) -> {name}")
    lines += [f"sum .u list_{name}_sum_{name} list({name}) -> {name}" for name in ("int", "uint", "double", "duration")]
    for pair in _TIME_PARTS.split():
        function, _, part = pair.partition("=")
        lines.append(f"{function} .u timestamp_to_{part} timestamp -> int")
        lines.append(f"{function} .b timestamp_to_{part}_with_tz timestamp string -> int")
    lines += [f"format.{name} -f format.{name} -> Format" for name in FORMATS]
    return lines
