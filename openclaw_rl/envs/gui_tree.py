"""A page as text: its accessibility tree, with numbers for the interactive nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.async_api import CDPSession

_USABLE = {
    "button", "link", "textbox", "searchbox", "checkbox", "radio", "combobox", "listbox", "menuitem", "tab",
    "switch",
    "slider", "spinbutton",
}  # fmt: skip
_STATES = ("checked", "selected", "disabled", "expanded", "pressed")
_MOST = 200


@dataclass(frozen=True, slots=True)
class Element:
    node: int
    """The browser's id for it (``backendDOMNodeId``)."""
    name: str


async def read_tree(cdp: CDPSession, numbers: dict[int, int]) -> tuple[list[str], dict[int, Element]]:
    """The tree's lines, and its elements by the number the agent uses. ``numbers`` maps browser ids to those
    numbers and is updated, so that an element keeps its number."""
    tree = await cdp.send("Accessibility.getFullAXTree")
    nodes = {node["nodeId"]: node for node in tree["nodes"]}
    lines: list[str] = []
    elements: dict[int, Element] = {}
    for node in _shown(nodes, tree["nodes"][0]):
        line = _line(nodes, node)
        if node["role"]["value"] in _USABLE:
            backend = node["backendDOMNodeId"]
            number = numbers.setdefault(backend, len(numbers) + 1)
            line = f"[{number}] {line}"
            elements[number] = Element(backend, _value(node, "name").strip())
        lines.append(line)
    return lines[:_MOST], elements


def _shown(nodes: dict[str, Any], node: Any) -> Iterator[Any]:
    """Interactive nodes, headings and text, top to bottom; labels are skipped: they repeat a field's name."""
    role = node.get("role", {}).get("value")
    if not node.get("ignored"):
        if role in _USABLE or role in ("heading", "StaticText"):
            yield node
            return
        if role == "LabelText":
            return
    for child in node.get("childIds", []):
        if child in nodes:
            yield from _shown(nodes, nodes[child])


def _line(nodes: dict[str, Any], node: Any) -> str:
    role = node["role"]["value"]
    text = f'{"text" if role == "StaticText" else role} "{_value(node, "name").strip()}"'
    if role in ("textbox", "searchbox", "combobox", "spinbutton", "slider"):
        text += f' = "{_value(node, "value")}"'
    if options := [_value(each, "name") for each in _under(nodes, node) if _value(each, "role") == "option"]:
        text += f" of {' | '.join(options)}"
    for given in node.get("properties", []):
        if given["name"] in _STATES and str(given["value"].get("value")).lower() == "true":
            text += f" ({given['name']})"
    return text


def _under(nodes: dict[str, Any], node: Any) -> Iterator[Any]:
    for child in node.get("childIds", []):
        if child in nodes:
            yield nodes[child]
            yield from _under(nodes, nodes[child])


def _value(node: Any, name: str) -> str:
    return str(node.get(name, {}).get("value", ""))
