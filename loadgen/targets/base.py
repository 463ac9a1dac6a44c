"""What a dialect is: how a request is written, and how the events of its answer are understood."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from loadgen.plan import Shot
from loadgen.targets.reading import Reading
from loadgen.text import Message
from loadgen.transport import HttpRequest

Payload = dict[str, Any]


class Dialect(Protocol):
    """One frozen dataclass per dialect; its fields are what a scenario may set."""

    end: ClassVar[re.Pattern[bytes]]
    """Matches the first line of an event that may be the stream's last one or an error, from the line end
    before it on. On the send path nothing else of a stream is looked at; what it means is decided later."""

    hints: ClassVar[tuple[bytes, ...]]
    """Words of which one occurs in every line that ``end`` matches: what each read is searched for."""

    alike: ClassVar[bool]
    """Events of a stream that begin like its first one (16 bytes) never are its end."""

    @property
    def model(self) -> str: ...
    @property
    def own(self) -> bool:
        """The target is our own engine: it takes our headers and gives token ids."""

    def model_of(self, shot: Shot) -> str:
        """The model that ``shot`` asks for: its adapter, where it has one."""

    def access(self) -> tuple[tuple[str, str], ...]:
        """The headers of every request to this target: version, key, the scenario's own. Raises ValueError
        if the key is not there."""

    def redact(self, text: str, least: int = 1) -> str:
        """``text`` without the key, which servers like to repeat, also escaped; a key of less than ``least``
        characters stays, for it may be a word."""

    @abstractmethod
    def request(
        self, shot: Shot, messages: Sequence[Message], request_id: str, stream: bool = True
    ) -> HttpRequest:
        """The request for ``shot``; a stream is asked for its usage too."""

    @abstractmethod
    def read(self, payload: Payload) -> Reading:
        """What one parsed event (or a whole answer) says. Depends on nothing but the payload, and takes any
        JSON object: servers write what they like."""

    @abstractmethod
    def tokenize(self, messages: Sequence[Message]) -> HttpRequest:
        """Asks our own engine which token ids it makes of these messages."""
