"""``kubectl_complete-dra``: complete the last of the words after ``kubectl dra`` in bash, zsh and fish.

Prints one candidate a line, a tab before its description, and a last line ``:N`` with cobra's directive. Source:
kubectl, pkg/cmd/plugin/plugin_completion.go (1.26 and later); cobra, completions.go (ShellCompDirective).
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.command_line.main import parser_of
from dra_driver.core.telemetry import logs
from dra_driver.kube import paths
from dra_driver.kube.connection import Connection
from dra_driver.kube.kubeconfig import Kubeconfig
from dra_driver.kube.rest import RestClient, Timeouts, pages
from dra_driver.kubectl.commands.kubectl import ABOUT, SUBCOMMANDS
from dra_driver.kubectl.commands.source import SERVICE_ACCOUNT_DIR

# Limit of the wait at a prompt. The API server returns the first names of a larger collection.
_TIMEOUTS: Final = Timeouts(connect_s=1.0, read_s=2.0, total_s=2.5)
MOST: Final = 500


def names_in_cluster(kind: str, cluster: "AskedCluster") -> list[str]:
    """Return at most `MOST` names of nodes, namespaces, pods, claims or contexts. Raises DraError."""
    logs.configure("text", "error")
    chosen = Kubeconfig(path=cluster.kubeconfig or None, context=cluster.context or None)
    if kind == "context":
        return chosen.names(os.environ)
    rest = RestClient(Connection.load(chosen.path, context=chosen.context), timeouts=_TIMEOUTS)
    namespace = cluster.namespace or chosen.namespace(os.environ, SERVICE_ACCOUNT_DIR)
    known = {"node": paths.nodes(), "namespace": paths.namespaces(), "pod": paths.pods(namespace)}
    page = next(pages(rest.get, known.get(kind) or paths.resource_claims(namespace), limit=MOST))
    return [str(item["metadata"]["name"]) for item in page["items"]]


NO_FILES: Final = 4
NO_SPACE_NO_FILES: Final = 6
FILES: Final = 0
_FILES: Final = ("FILE", "DIR", "FOLDER", "PATH")

Names = Callable[[str, "AskedCluster"], list[str]]
Candidates = tuple[list[tuple[str, str]], int]


class AskedCluster(Struct, frozen=True, kw_only=True):
    """Values of these options in the line; "" if absent."""

    namespace: str = ""
    kubeconfig: str = ""
    context: str = ""
    typed: str = ""
    """The type before a name, as in ``pod train``."""

    def after(self, option: argparse.Action, value: str) -> "AskedCluster":
        return replace(self, **{option.dest: value}) if option.dest in ("namespace", "kubeconfig", "context") else self


def main(argv: Sequence[str] | None = None) -> int:
    """Print the candidates, none after any error: a shell must not show a traceback at a prompt."""
    words = list(sys.argv[1:] if argv is None else argv) or [""]
    try:
        found, directive = candidates(words, names_in_cluster)
    except (Exception, SystemExit):  # noqa: BLE001 - see above
        found, directive = [], NO_FILES
    for name, about in found:
        print(f"{name}\t{about}" if about else name)
    print(f":{directive}")
    return 0


def candidates(words: Sequence[str], names: Names) -> Candidates:
    """Return candidates with their descriptions, and the directive. ``names`` lists the objects of a kind."""
    *before, last = words
    command = next((word for word in before if not word.startswith("-")), None)
    top, _ = parser_of("kubectl dra", ABOUT, SUBCOMMANDS, {command})
    parser, positional, open_option, cluster = _walk(top, before)
    if open_option is not None:
        return _values(open_option, last, names, cluster)
    if last.startswith("-"):
        option, equals, value = last.partition("=")
        action = _option(parser, option) if equals else None
        if action is None:
            return _options(parser, last), NO_FILES
        found, directive = _values(action, value, names, cluster)
        return [(f"{option}={name}", about) for name, about in found], directive
    if positional is None:
        return [], NO_FILES
    return _values(positional, last, names, cluster)


def _walk(
    parser: argparse.ArgumentParser, words: Iterable[str]
) -> tuple[argparse.ArgumentParser, argparse.Action | None, argparse.Action | None, AskedCluster]:
    """Return the parser, the next positional argument, the option that waits for a value, and the cluster."""
    positionals, waiting, cluster = _positionals(parser), None, AskedCluster()
    for word in words:
        if waiting is not None:
            cluster, waiting = cluster.after(waiting, word), None
        elif word.startswith("-"):
            option, equals, value = word.partition("=")
            action = _option(parser, option)
            if action is not None and equals:
                cluster = cluster.after(action, value)
            waiting = action if action is not None and not equals and action.nargs != 0 else None
        elif positionals:
            action = positionals[0]
            if isinstance(action, argparse._SubParsersAction):
                parser = action.choices[word]
                positionals = _positionals(parser)
            elif action.nargs not in ("*", "+"):
                positionals = positionals[1:]
            elif word in _kinds(action):
                cluster = replace(cluster, typed=word)
    return parser, positionals[0] if positionals else None, waiting, cluster


def _positionals(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if not action.option_strings]


def _option(parser: argparse.ArgumentParser, name: str) -> argparse.Action | None:
    return parser._option_string_actions.get(name)


def _options(parser: argparse.ArgumentParser, prefix: str) -> list[tuple[str, str]]:
    return [
        (option, _line(action))
        for action in parser._actions
        if action.help != argparse.SUPPRESS
        for option in action.option_strings
        if option.startswith(prefix) and (option.startswith("--") or prefix == option)
    ]


def _values(action: argparse.Action, prefix: str, names: Names, cluster: AskedCluster) -> Candidates:
    if isinstance(action, argparse._SubParsersAction):
        about = {each.dest: each.help or "" for each in action._choices_actions}
        return _beginning(prefix, ((name, about.get(name, "")) for name in action.choices)), NO_FILES
    if action.choices is not None:
        return _beginning(prefix, ((str(choice), "") for choice in action.choices)), NO_FILES
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    if metavar in _FILES:
        return [], FILES
    if kinds := _kinds(action):
        return _objects(kinds, prefix, names, cluster)
    kind = {"namespace": "namespace", "node": "node", "nodes": "node", "context": "context"}.get(action.dest, "")
    if not kind and metavar == "NODE":
        kind = "node"
    return _beginning(prefix, ((name, "") for name in names(kind, cluster))) if kind else [], NO_FILES


def _kinds(action: argparse.Action) -> Sequence[str]:
    """Return the kinds of `source.add_targets` whose names can be listed."""
    return [kind for kind in getattr(action, "kinds", ()) if kind in ("node", "pod", "claim")]


def _objects(kinds: Sequence[str], prefix: str, names: Names, cluster: AskedCluster) -> Candidates:
    """Complete ``pod/NAME``: the kinds, and after one of them its objects; and ``pod NAME``."""
    if cluster.typed:
        return _beginning(prefix, ((name, "") for name in names(cluster.typed, replace(cluster, typed="")))), NO_FILES
    kind, slash, _ = prefix.partition("/")
    if not slash:
        return _beginning(prefix, ((f"{each}/", "") for each in kinds)), NO_SPACE_NO_FILES
    if kind not in kinds:
        return [], NO_FILES
    return _beginning(prefix, ((f"{kind}/{name}", "") for name in names(kind, cluster))), NO_FILES


def _beginning(prefix: str, found: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, about) for name, about in found if name.startswith(prefix)]


def _line(action: argparse.Action) -> str:
    return " ".join((action.help or "").replace("%%", "%").split())[:80]


if __name__ == "__main__":
    sys.exit(main())
