"""What a shell offers behind ``kubectl dra``."""

import pytest

from dra_driver.kubectl.commands import complete
from dra_driver.kubectl.commands.complete import FILES, NO_FILES, NO_SPACE_NO_FILES, AskedCluster, candidates


def names(kind: str, cluster: AskedCluster) -> list[str]:
    if cluster.kubeconfig:
        return ["far"] if cluster == AskedCluster(kubeconfig="/other") else []
    known = {("pod", ""): ["train", "infer"], ("pod", "team-a"): ["theirs"], ("node", ""): ["gpu-a", "gpu-b"]}
    return {**known, ("namespace", ""): ["default", "team-a"]}.get((kind, cluster.namespace), [])


@pytest.mark.parametrize(
    ("words", "expected", "directive"),
    [
        (["ex"], ["explain"], NO_FILES),
        (["policy", ""], ["explain"], NO_FILES),
        (["explain", "po"], ["pod/"], NO_SPACE_NO_FILES),
        (["explain", "pod/t"], ["pod/train"], NO_FILES),
        (["explain", "-n", "team-a", "pod/"], ["pod/theirs"], NO_FILES),
        (["explain", "--namespace=team-a", "pod/"], ["pod/theirs"], NO_FILES),
        (["explain", "pod/train", ""], [], NO_FILES),
        (["explain", "--kubeconfig", "/other", "pod/"], ["pod/far"], NO_FILES),
        (["drain", "--kubeconfig=/other", ""], ["far"], NO_FILES),
        (["explain", "-n", "te"], ["team-a"], NO_FILES),
        (["explain", "--name"], ["--namespace"], NO_FILES),
        (["explain", "-o", "j"], ["json"], NO_FILES),
        (["explain", "--output=j"], ["--output=json"], NO_FILES),
        (["explain", "-f", ""], [], FILES),
        (["explain", "--node", ""], ["gpu-a", "gpu-b"], NO_FILES),
        (["drain", "gpu-"], ["gpu-a", "gpu-b"], NO_FILES),
        (["drain", "--evict", "gpu-b"], ["gpu-b"], NO_FILES),
        (["lint", "a.yaml", ""], [], FILES),
        (["classes", ""], ["list", "apply", "prune"], NO_FILES),
    ],
)
def test_candidates(words: list[str], expected: list[str], directive: int) -> None:
    found, what = candidates(words, names)
    assert ([name for name, _ in found], what) == (expected, directive)


def test_subcommands_and_flags_have_descriptions() -> None:
    assert all(about for _, about in candidates([""], names)[0])
    assert dict(candidates(["explain", "--"], names)[0])["--kubeconfig"].startswith("how to reach")


@pytest.mark.parametrize("words", [["nope", ""], ["explain", "pod/"], ["policy", "nope", ""]])
def test_a_prompt_never_gets_an_error(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown command, and a cluster that cannot be reached."""
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    assert complete.main(words) == 0
    assert capsys.readouterr() == (":4\n", "")
