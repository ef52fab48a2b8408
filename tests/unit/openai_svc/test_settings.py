"""Headers that cannot go on are refused at the start."""

import pytest

from openai_svc.settings import FrontDoorSettings
from outrider.serving.settings import parse_settings


def test_headers_go_on_by_their_lower_names():
    arguments = ["--orchestrator", "a:1", "--forward-header", "X-Tenant,x-class"]
    assert parse_settings(FrontDoorSettings, arguments).forward_header == ("x-tenant", "x-class")


@pytest.mark.parametrize("name", ["x-request-id", "grpc-timeout", "a-bin", "a b", "ä"])
def test_a_header_that_is_no_metadata_is_refused(name, capsys):
    with pytest.raises(SystemExit):
        parse_settings(FrontDoorSettings, ["--orchestrator", "a:1", "--forward-header", name])
    assert "--forward-header" in capsys.readouterr().err


def test_an_orchestrator_is_needed(capsys):
    with pytest.raises(SystemExit):
        parse_settings(FrontDoorSettings, [])
    assert "--orchestrator (OPENAI_SVC_ORCHESTRATOR): required" in capsys.readouterr().err
