"""The code that is made of weft.proto is that of weft.proto."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.control import service

FOLDER = Path(service.__file__).parent
MADE = ("weft_pb2.py", "weft_pb2.pyi")


def without_version(text: str) -> list[str]:
    """Another protoc writes another version into its comments and checks."""
    return [
        line
        for line in text.splitlines()
        if "rotobuf" not in line
        and "_version" not in line
        and not line.strip(" ,").isdigit()
        and line.strip(" ,'") != ""
    ]


def test_the_generated_code_is_current(tmp_path: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc", reason="grpcio-tools: pip install it")
    source = FOLDER.parents[2]
    status = protoc.main(
        [
            "protoc",
            f"-I{source}",
            f"--python_out={tmp_path}",
            f"--pyi_out={tmp_path}",
            str(FOLDER / "weft.proto"),
        ]
    )
    assert status == 0
    for name in MADE:
        made = tmp_path / "weft" / "control" / "service" / name
        same = without_version(made.read_text()) == without_version((FOLDER / name).read_text())
        assert same, f"{name} is not that of weft.proto: run tools/protoc.sh"


def test_every_call_of_the_paper_is_there() -> None:
    pytest.importorskip("google.protobuf")
    from weft.control.service.methods import METHODS

    assert {"Register", "Connect", "Disconnect", "Deregister"} <= set(METHODS)


def test_who_writes_a_frame_wrongly_is_sent_to_the_page_that_says_how() -> None:
    pytest.importorskip("google.protobuf")
    from weft.control.service.json_socket import read_frame
    from weft.control.service.refusals import Refused

    page = Path(__file__).parents[2] / "docs" / "control-protocol.md"
    with pytest.raises(Refused, match=f"see docs/{page.name}"):
        read_frame(b'{"call": "Renew", "nonsense": 1}')
    assert "an unknown field is refused" in page.read_text()
