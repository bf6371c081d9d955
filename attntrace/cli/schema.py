"""attntrace schema"""

from __future__ import annotations

from attntrace.cli.app import command
from attntrace.cli.options import Format, Target
from attntrace.cli.session import emit


@command
def schema(output: Target) -> None:
    """Print the JSON Schema of a config, for editors that complete and check YAML.

    Example: attntrace schema > attntrace.schema.json
    """
    import json

    from attntrace.config.schema import json_schema
    from attntrace.render.text import write_text

    text = json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"
    emit(output, Format.json, lambda out: write_text(text, out))
