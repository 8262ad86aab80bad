"""Requests made from the schema, good and bad, and what the schema itself must say."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

if TYPE_CHECKING:
    from tests.server.conftest import Running, Start

BLIND = [positive_data_acceptance]
"""The schema cannot say that two fields exclude each other."""
TYPELESS = ("multipart/form-data",)
"""In a form a number or null is a text like any other."""
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)


@pytest.fixture(scope="module")
def module_running(module_start: Start) -> Running:
    return module_start()


def knock(running: Running, examples: int) -> int:
    """Every operation, with `examples` good and as many bad requests. Returns how many operations there are."""
    schema = schemathesis.openapi.from_url(f"{running.url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    for operation in operations:
        for mode in MODES:

            @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
            @given(case=operation.as_strategy(generation_mode=mode))
            def ask(case: schemathesis.Case) -> None:
                case.call_and_validate(excluded_checks=BLIND + ([negative_data_rejection] if case.media_type in TYPELESS else []))

            with suppress(Unsatisfiable):  # where there is nothing to get wrong
                ask()
    return len(operations)


def test_no_request_breaks_the_server_or_its_schema(module_running: Running) -> None:
    assert knock(module_running, 5) == 9


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_request_breaks_the_server_or_its_schema_at_length(module_running: Running) -> None:
    assert knock(module_running, 500) == 9


def test_every_field_is_described(module_running: Running) -> None:
    document = httpx2.get(f"{module_running.url}/openapi.json").json()
    fields = document["components"]["schemas"]["SpeechBody"]["properties"]
    assert len(fields) >= 18
    assert [name for name, field in fields.items() if not field.get("description")] == []
    operations = [op for path in document["paths"].values() for op in path.values()]
    assert [op["operationId"] for op in operations if not op.get("summary")] == []
