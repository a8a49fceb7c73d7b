"""What a judge is shown is data: nothing written inside it may speak to the judge.

``neutralise`` returns a text with everything taken out that addresses a judge instead of the
assistant: control tokens, markup that imitates a prompt's delimiters, verdict lines, fake
dialogue, orders to ignore instructions. A cut runs from the clause where it starts to the end of
its sentence, so what a person honestly wrote before it still counts. It is idempotent.

``fence`` wraps data for a model that reads instructions: JSON text between markers that carry a
random number, which text written beforehand cannot contain.

Not done here: recognising every possible attack. Text that merely praises, in the role of a user,
is indistinguishable from a user's praise; that is why the role decides what may count as feedback.
"""

from __future__ import annotations

import json
import re
import secrets
import unicodedata

_INVISIBLE = re.compile(r"[\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff\u00ad\U000e0000-\U000e007f]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
#: Whole blocks first: what stands between a control token and its end was never said by anyone.
_BLOCK = re.compile(
    r"<\|im_start\|>.*?(?:<\|im_end\|>|\Z)|<\|start_header_id\|>.*?(?:<\|eot_id\|>|\Z)|\[INST\].*?(?:\[/INST\]|\Z)|"
    r"<<SYS>>.*?(?:<</SYS>>|\Z)|<start_of_turn>.*?(?:<end_of_turn>|\Z)|"
    r"<(verdict|score|label|rating|reward|judge|judg[e]?ment|grade|system|evaluation)\b[^<>]{0,60}>[^<]{0,400}</\1>",
    re.DOTALL | re.IGNORECASE,
)
_TOKEN = re.compile(
    r"<\|[^|<>]{0,40}\|>|\[/?INST\]|<</?SYS>>|</?s>|<(?:start|end)_of_turn>|"
    r"</?(?:system|user|assistant|human|tool|tool_response|verdict|score|label|rating|reward|judge|judg[e]?ment|"
    r"grade|evaluation|reply|response|answer|next_?state|request|data|case|instructions?|prompt|think|thinking|"
    r"context|example|result|output|final)(?:[\s_-][^<>]{0,60})?/?>|"
    r"\\boxed\{[^{}]{0,40}\}|={3,}|-{4,}|#{3,}|`{3,}(?:verdict|score|label|json\s*\{\s*\"(?:verdict|score))|"
    r"\{\s*[\"'](?:verdict|score|label|rating|reward|vote)[\"']\s*:\s*[\"']?[+−–-]?\w{1,12}[\"']?\s*"
    r"(?:,\s*[\"']\w+[\"']\s*:\s*[^{}]{0,200})?\}",
    re.IGNORECASE,
)
#: A line that plays another part of the dialogue or of the judge's own examples.
_PLAYED = re.compile(
    r"^[\s>*#\-\[\(\"']*(?:system(?: (?:message|prompt|note|override|update))?|developer|admin(?:istrator)?|user|"
    r"human|assistant|ai|bot|person|customer|question|answer|request|reply|reaction|feedback|"
    r"next (?:message|state|user message)|"
    r"judge|judge'?s? (?:note|verdict|decision)|evaluator|grader|verdict|final verdict|score|label|rating|reward|"
    r"judg[e]?ment|sentiment|outcome|helped|example \d+|"
    r"note to (?:the )?\w+|(?:important )?(?:message|instructions?) (?:to|for) [\w ]{1,30})"
    r"[\"'\]\)*]*\s*(?::|=|->|→)\s*(?P<rest>.*)$",
    re.IGNORECASE,
)
_JUDGE = (
    r"(?:judges?|evaluators?|graders?|raters?|annotators?|reviewers?|classifiers?|scorers?|"
    r"(?:reward|judge|scoring|evaluation|grading|language) (?:model|system|function|script|pipeline)s?|"
    r"llms?|whoever (?:reads|rates|scores|judges|grades)|automated (?:review|check)\w*|richter|juge|juez|giudice)"
)
_MARK = (
    r"(?:\+ ?1|[-−–]1|\bplus one\b|\bminus one\b|\bpositive\b|\bnegative\b|\bneutral\b|\bgood\b|\bbad\b|\bperfect\b|"
    r"\bcorrect\b|\bsuccess\w*|\bhelpful\b|\bpass(?:ed)?\b|\bhighest\b|\bmax(?:imum|imal)?\b|\btop\b|\bfull\b|"
    r"\bbest\b|\blowest\b|\bfail\w*|\byes\b|\bhappy\b|\bunhappy\b|\b1(?:\.0)?\b|\b10/10\b|\b0\b|\bpositiv\w*)"
)
_GRADE = (
    r"(?:verdict|scores?|labels?|ratings?|rewards?|votes?|grades?|judg[e]?ments?|evaluations?|bewertung|note)"
)
_ATTACKS = re.compile(
    "|".join(
        (
            # orders to leave the judge's task
            r"\b(?:ignor\w*|disregard\w*|forget|override|overrule|bypass|skip|drop|vergiss|ignorier\w*|oublie\w*|"
            r"olvida|dimentica)\b[^.!?\n]{0,60}\b(?:instructions?|prompts?|rules?|guidelines?|rubric|criteria|"
            r"directives?|complaint|feedback|anweisung\w*|regeln|consignes?|instrucciones|istruzioni|"
            r"(?:all|everything|anything|text|what|the \w+)[^.!?\n]{0,20}\b(?:above|before|previous\w*|earlier|said|"
            r"below))\b",
            r"\b(?:output|print|return|answer|say|respond|emit|reply|choose|pick|predict)(?: with)?(?: only| always| just)?"
            r"\s*[\"'“(\[]*(?:good|bad|positive|negative|neutral|helpful|happy|angry|\+ ?1|[-−–]1)[\"'”)\]]*"
            r"(?: only| always| here| for (?:this|every)[^.!?\n]*| please)?\W*$",
            r"\b(?:new|updated|revised|real|actual|true|secret|hidden) (?:instructions?|system prompt|task|rules?)\b",
            r"\byou are (?:now|no longer|actually)\b[^.!?\n]{0,80}",
            r"\b(?:system|developer|admin) (?:override|mode|notice|message|prompt|instruction|note|update)\b",
            r"\bend of (?:data|conversation|transcript|dialogue|next state|input|example|case|text|reply|message)\b",
            r"\bbegin (?:verdict|answer|evaluation|judg[e]?ment|system|instructions)\b",
            # speaking to or about whoever judges
            rf"\b(?:dear|hey|hi|hello|attention|note (?:to|for)|to|for|as) (?:the |an? |any |all )?(?:\w+ )?{_JUDGE}\b",
            rf"\b{_JUDGE}\b[^.!?\n]{{0,80}}\b(?:must|should|shall|will|has to|have to|needs? to|please|is to|are to|"
            rf"can|told|instructed|ignore|treat|count|mark|score|rate|output|answer|return|give|assign|soll|doit|debe|"
            rf"deve)\b",
            rf"\bif you (?:are|'re) (?:an? |the )?(?:ai |automated |automatic )?{_JUDGE}\b",
            # orders about a grade
            rf"\b(?:answer|reply|respond|output|print|return|say|write|assign|give|set|emit|choose|select|pick|put|use|"
            rf"mark|label|rate|score|grade|classify|treat|count|consider|judge|record|register|report|log|predict|"
            rf"bewerte\w*|antworte|vergib|gib|réponds|donne\w*|responde|califica|rispondi|valuta)\b[^.!?\n]{{0,60}}"
            rf"(?:(?:\b(?:as|with|only|exactly|just|mit|als|avec|con|come)\b[^.!?\n]{{0,25}}"
            rf"(?:\+ ?1|[-−–]1|\"(?:good|bad|positive|helpful)\"|'(?:good|bad|positive|helpful)'|"
            rf"\b(?:good|positive|successful|a success|correct|negative|bad|helpful|perfect)\b(?=\W*(?:$|[.!?\n\"'\])]|"
            rf"regardless|no matter|please|always|whatever|and nothing|in your|for this))))|\+ ?1(?!\w)|"
            rf"\b{_GRADE}\b[^.!?\n]{{0,30}}{_MARK}|{_MARK}[^.!?\n]{{0,20}}\b{_GRADE}\b)",
            rf"\b(?:the |this |final |correct |right |expected |your |my |true |gold |official )*{_GRADE}\b\s*"
            rf"(?:is|are|=|:|must be|should be|has to be|shall be|->|→|was|of|ist|est|es|:=)\s*(?:now |always )?[\"'\[(*]*"
            rf"{_MARK}",
            rf"\b(?:deserves?|merits?|earn(?:s|ed)?|qualif(?:y|ies) (?:for|as)|counts? as|is (?:worth|an?))\b"
            rf"[^.!?\n]{{0,30}}(?:\+ ?1(?!\w)|\b(?:top|full|maximum|highest|perfect|positive|best) {_GRADE}\b)",
            r"\b(?:verdict|reward|label|vote|score)\b\s*[:=\[(\"']+\s*[+−–-]?\d",
            r"\b(?:score|reward|verdict) (?:hack|injection)\b",
            r"\[\s*(?:\+1|-1|−1|good|bad|positive|negative)\s*\]",
        )
    ),
    re.IGNORECASE,
)
#: In a tool result or a reply nobody is entitled to an opinion of the assistant's work.
_SELF_PRAISE = re.compile(
    r"\b(?:the |this |your |that )?(?:assistant|agent|ai|model|bot|reply|response|answer|step|tool call|user)\b"
    r"(?:'s \w+)?\s+(?:\w+ ){0,3}?(?:did (?:a |an )?(?:great|perfect|excellent|good|amazing|fantastic)|"
    r"(?:is|was|were) (?:\w+ )?(?:perfect|excellent|great|flawless|correct|happy|satisfied|thrilled|delighted|pleased|"
    r"amazing|outstanding|wonderful|helpful|successful)|made (?:\w+ )?progress|loves?|loved|liked|approves?|approved|"
    r"thanks|thanked|(?:has )?(?:solved|completed|succeeded|accomplished|fulfilled))\b",
    re.IGNORECASE,
)
_ORDERS = re.compile(r"system|developer|admin|note to|message|instruction", re.IGNORECASE)
_BARE = re.compile(r"\W*(?:\+ ?1|[-−–] ?1)\W*")
_DEBRIS = re.compile(r"[\s.,;:`'\"|()\[\]{}<>/-]+")
_HEADING = re.compile(
    r"\W*(?:important|attention|note|notice|warning|ps|p\.s|nb|hinweis|achtung|developer|system|admin|judge|evaluator|"
    r"grader|remember|reminder|urgent|always|also|final|and|now|please|update)?\W*",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"[^.!?…\n]+(?:[.!?…]+(?=\s|$|[\"')\]])|[.!?…]+(?=\S)|\n|$)|[.!?…\n]+")
_CLAUSE_START = re.compile(r"[,;:—–(\[\"“”|]|\s-\s|\b(?:and|so|but|please|now|und|et|y|e)\b")


def neutralise(text: str, role: str = "user") -> str:
    """``text`` without anything that is meant for a judge."""
    if role == "user" and _BARE.fullmatch(text.strip()):
        return text.strip()  # a message that is nothing but ``+1`` is a person's rating
    for _ in range(8):  # taking something out can join what was split to hide it
        cleaned = _neutralise_once(text, role)
        if cleaned == text:
            break
        text = "\n".join(line for line in cleaned.split("\n") if not _DEBRIS.fullmatch(line))
    return text


def _neutralise_once(text: str, role: str) -> str:
    text = _INVISIBLE.sub("", unicodedata.normalize("NFC", text))
    text = _CONTROL.sub(" ", text)
    if role != "user":
        text = _COMMENT.sub(" ", text)
    # A line break, so that what follows cannot pass for the rest of an honest sentence.
    text = _TOKEN.sub("\n", _BLOCK.sub("\n", text))
    lines = [kept for line in text.split("\n") if (kept := _neutralise_line(line, role)) is not None]
    return "\n".join(lines).strip()


def _neutralise_line(line: str, role: str) -> str | None:
    """None for a line that is dropped altogether; an empty line stays one."""
    if not line.strip():
        return ""
    if (played := _PLAYED.match(line)) and (role != "tool" or _is_verdict_or_order(played)):
        if not _ORDERS.search(played.group()[: played.start("rest") - played.start()]):
            return None
        # An order ends with its sentence; what a person wrote after it still counts.
        _, _, line = played["rest"].partition(". ")
    if _BARE.fullmatch(line):
        return None
    kept = "".join(_cut(match.group(), role) for match in _SENTENCE.finditer(line)).rstrip()
    return kept if kept.strip(" \"'.,;:!()[]{}-") or not line.strip(" \"'.,;:!()[]{}-") else None


def _is_verdict_or_order(played: re.Match[str]) -> bool:
    """Tool results are full of ``answer: 42``; only what looks like talk to the judge goes."""
    head = played.group()[: played.start("rest") - played.start()].lower()
    words = (
        "verdict",
        "judge",
        "evaluator",
        "grader",
        "reward",
        "system",
        "developer",
        "admin",
        "user",
        "human",
    )
    return any(
        word in head for word in (*words, "assistant", "note to", "message", "instruction", "reaction")
    )


def _cut(sentence: str, role: str) -> str:
    starts = [match.start() for match in _ATTACKS.finditer(sentence)]
    if role != "user":
        starts += [match.start() for match in _SELF_PRAISE.finditer(sentence)]
    if not starts:
        return sentence
    attack = min(starts)
    clause = max((m.start() for m in _CLAUSE_START.finditer(sentence) if m.start() <= attack), default=0)
    kept = sentence[:clause].rstrip(' ,;:—–(["“|-')
    return "" if _HEADING.fullmatch(kept) else kept


def fence(value: object) -> tuple[str, str]:
    """(marker, block): the value as JSON between two lines that only this call knows."""
    marker = f"DATA-{secrets.token_hex(8)}"
    return marker, f"<<{marker}\n{json.dumps(value, ensure_ascii=False, indent=1)}\n{marker}>>"
