"""attntrace schema"""

from __future__ import annotations

from attntrace.cli.app import command
from attntrace.cli.options import Format, Output
from attntrace.cli.session import emit, format_of


@command
def schema(output: Output) -> None:
    """Print the JSON Schema of a config, for editors that complete and check YAML.

    Example: attntrace schema > attntrace.schema.json
    """
    import json

    from attntrace.config.schema import json_schema
    from attntrace.render.text import write_text

    chosen = format_of(output, [Format.rich, Format.json])
    text = json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"
    emit(output, chosen, lambda out: write_text(text, out))
