"""The code that is made of .proto files is theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.control import service

SOURCE = Path(service.__file__).parents[3]
PROTOS = ("weft/control/service/weft", "weft/simulate/workload/chakra", "weft/control/cluster/etcd")


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


@pytest.mark.parametrize("proto", PROTOS)
def test_the_generated_code_is_current(tmp_path: Path, proto: str) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc", reason="grpcio-tools: pip install it")
    status = protoc.main(
        [
            "protoc",
            f"-I{SOURCE}",
            f"--python_out={tmp_path}",
            f"--pyi_out={tmp_path}",
            str(SOURCE / f"{proto}.proto"),
        ]
    )
    assert status == 0
    for name in (f"{proto}_pb2.py", f"{proto}_pb2.pyi"):
        made, kept = ((folder / name).read_text() for folder in (tmp_path, SOURCE))
        same = without_version(made) == without_version(kept)
        assert same, f"{name} is not that of {proto}.proto: run tools/protoc.sh"


def test_every_call_of_the_paper_is_there() -> None:
    pytest.importorskip("google.protobuf")
    from weft.control.service.methods import METHODS

    assert {"Register", "Connect", "Disconnect", "Deregister"} <= set(METHODS)


def test_who_writes_a_frame_wrongly_is_sent_to_the_page_that_says_how() -> None:
    pytest.importorskip("google.protobuf")
    from weft.control.service.local_socket import read_frame
    from weft.control.service.refusals import Refused

    page = Path(__file__).parents[2] / "docs" / "control-protocol.md"
    with pytest.raises(Refused, match=f"see docs/{page.name}"):
        read_frame(b'{"call": "Renew", "nonsense": 1}')
    assert "an unknown field is refused" in page.read_text()
