"""Secrets are found in whatever surrounds them, and ordinary text is left alone."""

from __future__ import annotations

import io
import json
import logging
import random

import pytest

from bench.find_secrets import find_all, ordinary_lines
from openclaw_rl.secret_scan import find_secrets, mask, mask_logs

AWS = "AKIA" + "Q3ZP7XW2LMND5RTV"
KEY = "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEowIBAAKCAQEA7bq\n" * 8 + "-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"use {AWS}, please", "aws-key"),
        (f'{{"id":"{AWS}"}}', "aws-key"),
        ("sk-ant-api03-" + "aB3-x_" * 15, "api-key"),
        (KEY, "private-key"),
        (json.dumps({"key": KEY}), "private-key"),
        ("my card: 4111 1111 1111 1129", "card-number"),
        ("send it to DE89 3704 0044 0532 0130 00", "iban"),
        ("the password is Tr0ub4dor&3", "password"),
        ("DB_PASSWORD=k7Hx2mQ9", "password"),
        ('password: "correct!horse"', "password"),
        ("postgresql://bob:w8fhq2@db/x", "url-password"),
        ("Authorization: Bearer 8f2c1d9e77aa4b01", "bearer-token"),
    ],
)
def test_what_is_found(text: str, kind: str) -> None:
    assert [one.kind for one in find_secrets(text)] == [kind]
    assert f"[secret:{kind}]" in mask(text)
    assert find_secrets(mask(text)) == []


def test_nothing_of_a_secret_is_left_and_the_rest_stays() -> None:
    assert mask(f"a {AWS} b {AWS} c") == "a [secret:aws-key] b [secret:aws-key] c"
    assert json.loads(mask(json.dumps({"k": KEY, "n": 1}))) == {"k": "[secret:private-key]", "n": 1}


@pytest.mark.parametrize(
    "text",
    [
        "password = get_password(user2)",
        "token: str | None = None",
        "max_tokens=4096",
        "What is a good password?",
        "tokenizer = AutoTokenizer.from_pretrained('gpt2')",
        "The header is '-----BEGIN PRIVATE KEY-----', then base64.",
        "https://user:password@example.com",
        "commit 77e8f66a0b1c2d3e4f5061728394a5b6c7d8e9f0",
        "order 4111 1111 1111 1112 has a wrong check digit",
        "DE89 3704 0044 0532 0130 01",
        "call 0151 2345 6789 now",
        'api_key = os.environ["API_KEY2"]',
    ],
)
def test_what_is_left_alone(text: str) -> None:
    assert find_secrets(text) == []


def test_logs_are_masked_with_their_tracebacks() -> None:
    root, stream = logging.getLogger(), io.StringIO()
    handler = logging.StreamHandler(stream)
    root.addHandler(handler)
    kept = {each: each.formatter for each in root.handlers}
    try:
        mask_logs()
        try:
            raise ValueError(f"cannot use {AWS}")
        except ValueError:
            root.exception("key %s", AWS)
    finally:
        root.removeHandler(handler)
        for each, formatter in kept.items():
            each.setFormatter(formatter)
    assert AWS not in stream.getvalue()
    assert stream.getvalue().count("[secret:aws-key]") == 2


def test_of_500_generated_secrets_of_20_kinds_99_percent_are_masked() -> None:
    made, found = find_all(500, random.Random(0))
    assert (made.total(), len(made)) == (500, 20)
    assert found.total() >= 0.99 * 500, made - found


def test_of_10000_lines_of_code_and_prose_half_a_percent_may_be_taken_for_secrets() -> None:
    alarms = [line for line in ordinary_lines(10_000, random.Random(0)) if find_secrets(line)]
    assert len(alarms) <= 0.005 * 10_000, alarms
