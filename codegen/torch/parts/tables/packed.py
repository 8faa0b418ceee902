"""Tables that are too long to be read stand in a program compressed."""

import base64
import json
import zlib
from typing import Any


def unpacked(text: str) -> Any:
    """Tables out of compressed JSON."""
    return json.loads(zlib.decompress(base64.b85decode("".join(text.split()))))
