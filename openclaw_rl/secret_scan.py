"""Finds keys, tokens, passwords, private keys, card numbers and IBANs in text, and masks them by kind.

The formats of vendors' keys come from detect-secrets, which others maintain and which exposes plain regular
expressions. We add newer formats that it lacks, passwords that are labelled as such, and numbers with a
checksum. Nothing is looked up online, and no secret leaves this module.

Not found: a password without a label, and a secret that is spread over several messages.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

#: A pasted picture contains no text and is long, so it is skipped.
_PICTURE = re.compile(r"data:[\w/+.-]+;base64,")
#: Placeholders for a password.
_PLACEHOLDER = re.compile(
    r"(?i)^(?:user(?:name)?|pass(?:word|wd|phrase)?|pwd|secret|token|key|x{3,}|\*{3,}|\.{3,}|_{3,}|change_?me|"
    r"none|null|true|false|undefined|string)\d{0,3}$|^(?:your|my|some|example|dummy|fake|test|redacted)[-_ ]|"
    r"example|placeholder|^[<${%\[]|(.)\1{5}"
)
_ISSUER = re.compile(r"4|5[1-5]|2[2-7]|3[47]|6011|64[4-9]|65|35|30[0-5]|36|38|39|62")
_HARD_SYMBOL = re.compile(r"[!@#$%^&*+=?~]")


@dataclass(frozen=True, slots=True)
class Finding:
    start: int
    end: int
    kind: str


@dataclass(frozen=True, slots=True)
class _Pattern:
    kind: str
    regex: re.Pattern[str]
    group: int = 0
    """The regex group that is the secret."""
    is_real: Callable[[re.Match[str]], bool] = lambda match: True
    hints: tuple[str, ...] = ()
    """Every matching text contains one of these, in lower case: a fast check before the regex."""


def find_secrets(text: str) -> list[Finding]:
    """The secrets' positions, in order and without overlaps."""
    if len(text) < 8 or _PICTURE.match(text):
        return []
    found = sorted(_matches(text), key=lambda one: (one.start, -one.end))
    kept: list[Finding] = []
    for one in found:
        if kept and one.start < kept[-1].end:
            kept[-1] = Finding(kept[-1].start, max(one.end, kept[-1].end), kept[-1].kind)
        else:
            kept.append(one)
    return kept


def mask(text: str) -> str:
    """The text with every secret replaced by its kind; the result stays valid inside JSON."""
    for one in reversed(find_secrets(text)):
        text = f"{text[: one.start]}[secret:{one.kind}]{text[one.end :]}"
    return text


def mask_logs() -> None:
    """Mask everything that the root logger's handlers write from now on, including tracebacks."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_MaskingFormatter(handler.formatter or logging.Formatter()))


class _MaskingFormatter(logging.Formatter):
    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        return mask(self._inner.format(record))


def _matches(text: str) -> Iterator[Finding]:
    small = text.lower()
    for pattern in _patterns():
        if pattern.hints and not any(hint in small for hint in pattern.hints):
            continue
        for match in pattern.regex.finditer(text):
            if match.group(pattern.group) and pattern.is_real(match):
                yield Finding(*match.span(pattern.group), pattern.kind)


@cache
def _patterns() -> tuple[_Pattern, ...]:
    return (*_library_patterns(), *_own_patterns())


def _library_patterns() -> Iterator[_Pattern]:
    """The detectors of detect-secrets for one vendor's format, not those that guess by name or entropy."""
    from detect_secrets.plugins import (
        aws,
        azure_storage_key,
        basic_auth,
        discord,
        github_token,
        gitlab_token,
        mailchimp,
        npm,
        openai,
        pypi_token,
        sendgrid,
        slack,
        square_oauth,
        stripe,
        telegram_token,
        twilio,
    )  # fmt: skip

    for kind, detector, *hints in (
        ("aws-key", aws.AWSKeyDetector, "a3t", "abia", "acca", "akia", "asia", "aws"),
        ("azure-key", azure_storage_key.AzureStorageKeyDetector, "accountkey="),
        ("url-password", basic_auth.BasicAuthDetector, "://"),
        ("discord-token", discord.DiscordBotTokenDetector),
        ("github-token", github_token.GitHubTokenDetector, "ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
        ("gitlab-token", gitlab_token.GitLabTokenDetector, "gl", "gr1348941"),
        ("mailchimp-key", mailchimp.MailchimpDetector, "-us"),
        ("npm-token", npm.NpmDetector, "_authtoken="),
        ("openai-key", openai.OpenAIDetector, "t3blbkfj"),
        ("pypi-token", pypi_token.PypiTokenDetector, "pypi-"),
        ("sendgrid-key", sendgrid.SendGridDetector, "sg."),
        ("slack-token", slack.SlackDetector, "xox", "hooks.slack.com"),
        ("square-secret", square_oauth.SquareOAuthDetector, "sq0csp-"),
        ("stripe-key", stripe.StripeDetector, "k_live_"),
        ("telegram-token", telegram_token.TelegramBotTokenDetector),
        ("twilio-key", twilio.TwilioKeyDetector, "ac", "sk"),
    ):
        for regex in detector.denylist:
            # A single group is the secret, except GitHub's, which is a choice of prefixes.
            group = 1 if regex.groups == 1 and kind != "github-token" else 0
            is_real = _is_no_placeholder if kind == "url-password" else _always
            yield _Pattern(kind, regex, group, is_real, tuple(hints))


def _own_patterns() -> Iterator[_Pattern]:
    for kind, expression, group, is_real, *hints in (
        ("private-key", _PRIVATE_KEY, 0, _always, "private key"),
        ("jwt", r"\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*", 0, _always, "eyj"),
        # OpenAI, Anthropic, OpenRouter, and this server.
        ("api-key", r"\bsk-[A-Za-z0-9_-]{20,}", 0, _has_digits, "sk-"),
        ("api-key", r"\b(?:gsk_|xai-|pplx-)[A-Za-z0-9]{32,}", 0, _has_digits, "gsk_", "xai-", "pplx-"),
        ("google-key", r"\bAIza[\w-]{35}", 0, _always, "aiza"),
        ("google-key", r"\b(?:ya29\.|GOCSPX-)[\w-]{20,}", 0, _always, "ya29.", "gocspx-"),
        ("huggingface-token", r"\bhf_[A-Za-z0-9]{30,}", 0, _always, "hf_"),
        ("github-token", r"\bgithub_pat_\w{22,}", 0, _always, "github_pat_"),
        ("npm-token", r"\bnpm_[A-Za-z0-9]{36}\b", 0, _always, "npm_"),
        ("stripe-key", r"\b(?:[rs]k_(?:live|test)|whsec)_[0-9A-Za-z]{16,}", 0, _always, "k_", "whsec_"),
        ("slack-token", r"\b(?:xox[abeoprs]|xapp)-[0-9A-Za-z-]{10,}", 0, _has_digits, "xox", "xapp-"),
        ("digitalocean-token", r"\bdo[opr]_v1_[a-f0-9]{64}", 0, _always, "_v1_"),
        ("shopify-token", r"\bshp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}", 0, _always, "shp"),
        ("aws-key", _AWS_SECRET, 1, _has_digits, "aws"),
        ("bearer-token", _AUTHORIZATION, 1, _has_digits, "bearer", "authorization"),
        ("password", _NAMED, 3, _is_password, "pass", "pwd", "secret", "token", "key"),
        ("card-number", r"(?<![\w.+-])\d(?:[ -]?\d){12,18}(?![\w-]|\.\d)", 0, _is_card),
        ("iban", r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b", 0, _is_iban),
    ):
        yield _Pattern(kind, re.compile(expression), group, is_real, tuple(hints))


_AWS_SECRET = r"(?i)aws.{0,20}secret.{0,20}?[:=]\s*[\"']?([0-9a-z/+]{40})(?![0-9a-z/+])"
_PRIVATE_KEY = (
    r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----(?:[A-Za-z0-9+/=:,.;()-]|\s|\\[nr]){60,}?"
    r"(?:-----END (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----|\Z|(?![A-Za-z0-9+/=:,.;()\s\\-]))"
)
_AUTHORIZATION = r"(?i)\b(?:bearer|authorization[\"']?\s*[:=]\s*[\"']?(?:basic|token))\s+([\w.~+/=-]{16,})"
#: A label, a separator, an opening quote, the value.
_NAMED = (
    r"(?i)(passw(?:or)?d|passphrase|passwort|pwd|secret|token|api[_ -]?key|access[_ -]?key|auth[_ -]?key)"
    r"(?:[_-]?(?:key|value|prod|production|dev|test|\d{1,2}))?[\"'\]]{0,2}\s{0,3}"
    r"(?:(?::=|=>|=|:|\bis\b|\bist\b)\s{0,3}|(?=[\"'`]))([\"'`]?)([^\s\"'`]{6,200})"
)


def _always(match: re.Match[str]) -> bool:
    return True


def _has_digits(match: re.Match[str]) -> bool:
    """Excludes words joined by hyphens, which are no key."""
    secret: str = match[1] if match.re.groups else match[0]
    return sum(map(str.isdigit, secret)) >= 2


def _is_no_placeholder(match: re.Match[str]) -> bool:
    return not _PLACEHOLDER.search(match.group(1))


def _is_password(match: re.Match[str]) -> bool:
    """Whether the value looks like a password, not like a word or an expression in code."""
    quoted, value = bool(match.group(2)), match.group(3).rstrip(".,;:)")
    if len(value) < 6 or _PLACEHOLDER.search(value):
        return False
    has_letter, has_digit = any(map(str.isalpha, value)), any(map(str.isdigit, value))
    if not has_letter or not (has_digit or (quoted and _HARD_SYMBOL.search(value))):
        return False
    if not quoted and (re.match(r"[\w.]*[(\[{]|.*[<>|]|\w+\.\w|.*::|.*\$", value) or "_" in value):
        return False
    return bool(_HARD_SYMBOL.search(value)) or _num_changes(value) >= (2 if quoted else 3)


def _num_changes(value: str) -> int:
    """How often the text changes between letters and digits."""
    kinds = [c.isdigit() for c in value if c.isalnum()]
    return sum(a != b for a, b in pairwise(kinds))


def _is_card(match: re.Match[str]) -> bool:
    text = match.group()
    digits = [int(c) for c in text if c.isdigit()]
    number = "".join(map(str, digits))
    if not _ISSUER.match(number) or len(set(digits)) < 4:
        return False
    if not re.fullmatch(r"\d+|\d{4}([ -])\d{4}\1\d{4}\1\d{1,7}|\d{4}([ -])\d{6}\2\d{4,5}", text):
        return False
    doubled = [d * 2 - 9 * (d > 4) for d in digits[-2::-2]]
    return (sum(doubled) + sum(digits[::-2])) % 10 == 0


def _is_iban(match: re.Match[str]) -> bool:
    text = match.group().replace(" ", "")
    if not 15 <= len(text) <= 34:
        return False
    return int("".join(str(int(c, 36)) for c in text[4:] + text[:4])) % 97 == 1
