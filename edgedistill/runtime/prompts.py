"""What an encoder puts before a text, by the role that the text has: a query, a document, or neither."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from edgedistill.errors import UserError, unknown_name

ROLES = ("text", "query", "document")
OF_ROLES = ("query_prompt", "document_prompt")  # in shapes, manifests and recipes


class Prompts(NamedTuple):
    """The prompt of each of ROLES; `text` is that of a text without a role."""

    text: str = ""
    query: str = ""
    document: str = ""

    def of(self, role: str) -> str:
        """The prompt of a role. Raises UserError for an unknown one."""
        if role not in ROLES:
            raise UserError(f"role: {unknown_name('role', role, ROLES)}")
        return self[ROLES.index(role)]

    @property
    def own(self) -> dict[str, str]:
        """The prompts that differ from that of a text without a role, as shapes and manifests name them."""
        return {name: prompt for name, prompt in zip(OF_ROLES, self[1:], strict=True) if prompt != self.text}


def read(fields: Mapping[str, Any]) -> Prompts:
    """The prompts of a shape or a manifest, or of a recipe's student; where a role has none, that of a text
    without a role."""
    text = str(fields.get("prompt") or "")
    roles = map(fields.get, OF_ROLES)
    return Prompts(text, *(text if prompt is None else str(prompt) for prompt in roles))
