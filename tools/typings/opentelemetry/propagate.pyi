from collections.abc import Mapping

from opentelemetry.trace import Context

def extract(carrier: Mapping[str, str]) -> Context: ...
