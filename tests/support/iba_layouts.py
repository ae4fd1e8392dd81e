"""Where the InfiniBand architecture puts each field: its first bit and its width.

Bits are counted from the most significant one of the first byte (IBA volume 1: 13.4.2 and 14.2.1
for packets, 14.2.5 for attributes).
"""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st

Layout = Mapping[str, tuple[int, int]]

HEADER: Layout = {
    "BaseVersion": (0, 8),
    "MgmtClass": (8, 8),
    "ClassVersion": (16, 8),
    "R_Method": (24, 8),
    "Status": (32, 16),
    "HopPointer": (48, 8),
    "HopCount": (56, 8),
    "TransactionID": (64, 64),
    "AttributeID": (128, 16),
    "AttributeModifier": (160, 32),
    "M_Key": (192, 64),
    "DrSLID": (256, 16),
    "DrDLID": (272, 16),
}
NODE: Layout = {
    "BaseVersion": (0, 8),
    "ClassVersion": (8, 8),
    "NodeType": (16, 8),
    "NumPorts": (24, 8),
    "SystemImageGUID": (32, 64),
    "NodeGUID": (96, 64),
    "PortGUID": (160, 64),
    "PartitionCap": (224, 16),
    "DeviceID": (240, 16),
    "Revision": (256, 32),
    "LocalPortNum": (288, 8),
    "VendorID": (296, 24),
}
SWITCH: Layout = {
    "LinearFDBCap": (0, 16),
    "RandomFDBCap": (16, 16),
    "MulticastFDBCap": (32, 16),
    "LinearFDBTop": (48, 16),
    "DefaultPort": (64, 8),
    "DefaultMulticastPrimaryPort": (72, 8),
    "DefaultMulticastNotPrimaryPort": (80, 8),
    "LifeTimeValue": (88, 5),
    "PortStateChange": (93, 1),
    "OptimizedSLtoVLMappingProgramming": (94, 2),
    "LIDsPerPort": (96, 16),
    "PartitionEnforcementCap": (112, 16),
}
PORT: Layout = {
    "M_Key": (0, 64),
    "GidPrefix": (64, 64),
    "LID": (128, 16),
    "MasterSMLID": (144, 16),
    "CapabilityMask": (160, 32),
    "DiagCode": (192, 16),
    "M_KeyLeasePeriod": (208, 16),
    "LocalPortNum": (224, 8),
    "LinkWidthEnabled": (232, 8),
    "LinkWidthSupported": (240, 8),
    "LinkWidthActive": (248, 8),
    "LinkSpeedSupported": (256, 4),
    "PortState": (260, 4),
    "PortPhysicalState": (264, 4),
    "LinkDownDefaultState": (268, 4),
    "M_KeyProtectBits": (272, 2),
    "LMC": (277, 3),
    "LinkSpeedActive": (280, 4),
    "LinkSpeedEnabled": (284, 4),
    "NeighborMTU": (288, 4),
    "MasterSMSL": (292, 4),
    "VLCap": (296, 4),
    "InitType": (300, 4),
    "VLHighLimit": (304, 8),
    "VLArbitrationHighCap": (312, 8),
    "VLArbitrationLowCap": (320, 8),
    "InitTypeReply": (328, 4),
    "MTUCap": (332, 4),
    "VLStallCount": (336, 3),
    "HOQLife": (339, 5),
    "OperationalVLs": (344, 4),
    "PartitionEnforcementInbound": (348, 1),
    "PartitionEnforcementOutbound": (349, 1),
    "FilterRawInbound": (350, 1),
    "FilterRawOutbound": (351, 1),
    "M_KeyViolations": (352, 16),
    "P_KeyViolations": (368, 16),
    "Q_KeyViolations": (384, 16),
    "GUIDCap": (400, 8),
    "ClientReregister": (408, 1),
    "MulticastPKeyTrapSuppressionEnabled": (409, 2),
    "SubnetTimeOut": (411, 5),
    "RespTimeValue": (419, 5),
    "LocalPhyErrors": (424, 4),
    "OverrunErrors": (428, 4),
    "MaxCreditHint": (432, 16),
    "LinkRoundTripLatency": (456, 24),
    "CapabilityMask2": (480, 16),
    "LinkSpeedExtActive": (496, 4),
    "LinkSpeedExtSupported": (500, 4),
    "LinkSpeedExtEnabled": (507, 5),
}


def laid_out(layout: Layout, values: Mapping[str, int], length: int = 64) -> bytes:
    whole = 0
    for name, value in values.items():
        offset, width = layout[name]
        assert value < 1 << width, name
        whole |= value << (8 * length - offset - width)
    return whole.to_bytes(length, "big")


def field(layout: Layout, name: str, data: bytes) -> int:
    offset, width = layout[name]
    return int.from_bytes(data, "big") >> (8 * len(data) - offset - width) & ((1 << width) - 1)


def any_of(layout: Layout) -> st.SearchStrategy[dict[str, int]]:
    return st.fixed_dictionaries(
        {name: st.integers(0, (1 << width) - 1) for name, (_, width) in layout.items()}
    )
