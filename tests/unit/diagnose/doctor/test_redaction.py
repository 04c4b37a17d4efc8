"""What looks like a secret is removed from texts of other programs."""

import pytest

from dra_driver.diagnose.doctor.reduce import redacted


@pytest.mark.parametrize(
    "secret",
    [
        "Authorization: Bearer abcdefgh12345678",
        '{"token": "abcdefgh12345678"}',
        "password=abcdefgh12345678",
        "AWS_SECRET_ACCESS_KEY=abcdefgh12345678",
        "api-key: abcdefgh12345678",
        "https://user:abcdefgh12345678@registry.example/v2",
        "-----BEGIN RSA PRIVATE KEY-----\nabcdefgh12345678\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nabcdefgh12345678",
        "eyJhbGciOiJSUzI1NiJ9.eyJhbGciOiJSUzI1NiJ9.abcdefgh12345678",
        "ghp_abcdefgh12345678",
        "hf_abcdefgh12345678",
    ],
)
def test_secrets_go_and_the_rest_stays(secret: str) -> None:
    """The words around it are what helps."""
    text = redacted(f"before {secret} \nafter", 1000)
    assert "abcdefgh12345678" not in text
    assert text.startswith("before ")
    assert text.endswith("after") or "BEGIN" in secret


@pytest.mark.parametrize("text", ["claim team-a/train prepared", "GPU-5e1b8f0a-3c44", "no token was mounted", "a: b"])
def test_what_is_no_secret_stays(text: str) -> None:
    """Names of claims and UUIDs of GPUs are needed."""
    assert redacted(text, 1000) == text


def test_long_texts_are_cut() -> None:
    """A log cannot fill the bundle."""
    assert len(redacted("x" * 10_000, 100)) == 100
